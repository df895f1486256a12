"""Profiles: the constants of one device as a YAML file in which every number has its source.

```yaml
kind: ssd                  # names the dataclass that the parameters fill
description: Samsung PM983, 960 GB
parameters:
  channels: {value: 8, source: "who says so"}
```
"""

from __future__ import annotations

import math
import os
from collections.abc import Hashable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml

PROFILE_FOLDER = Path(__file__).parent / "profiles"
OWN_PROFILES = "NEARKV_PROFILES"  # environment variable: a folder of profiles beside those that ship
Config = TypeVar("Config")
_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which no key is given twice; the standard loader keeps the last of them silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(
                None, None, "a key is given twice; allowed: once", node.start_mark
            )
        return mapping


@dataclass(frozen=True)
class Profile(Generic[Config]):
    """A device's configuration and where each of its numbers comes from.

    Attributes:
        name: of the file, without folder and suffix.
        description: one line.
        config: the filled dataclass.
        sources: of every parameter in the file.

    """

    name: str
    description: str
    config: Config
    sources: dict[str, str]


def read_profile(path: Path, kind: str, config_type: type[Config]) -> Profile[Config]:
    """Read one profile and fill `config_type` with its values; lists become tuples.

    Raises:
        ValueError: names the file and what is wrong in it: no YAML, another kind, a parameter that is
            unknown, missing or without a source, a value of another type than the field's (a fraction
            would make simulated time one), or one that `config_type` refuses.

    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML: {' '.join(str(error).split())}") from None
    allowed = {"kind", "description", "parameters"}
    if not isinstance(document, dict) or set(document) != allowed:
        found = ", ".join(map(str, document)) if isinstance(document, dict) else repr(document)
        raise ValueError(f"{path}: keys are {found}; allowed: exactly {', '.join(sorted(allowed))}")
    if document["kind"] != kind:
        raise ValueError(f"{path}: kind is {document['kind']!r}; allowed here: {kind!r}")
    entries = document["parameters"]
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: parameters is {entries!r}; allowed: a mapping")
    values, sources = {}, {}
    for name, entry in entries.items():
        if (
            not isinstance(entry, dict)
            or set(entry) != {"value", "source"}
            or not isinstance(entry["source"], str)
            or not entry["source"].strip()
        ):
            raise ValueError(f"{path}: {name} is {entry!r}; allowed: {{value: ..., source: text}}")
        values[name] = entry["value"]
        sources[name] = entry["source"]
    known = {field.name: field for field in fields(config_type)}  # type: ignore[arg-type]
    unknown = [str(name) for name in values if name not in known]
    if unknown:
        raise ValueError(f"{path}: {', '.join(unknown)} is unknown; allowed: {', '.join(known)}")
    missing = [
        name
        for name, field in known.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{path}: {', '.join(missing)} is missing")
    hints = get_type_hints(config_type)
    try:
        config = config_type(**{name: _typed(hints[name], value, name) for name, value in values.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    return Profile(path.stem, str(document["description"]), config, sources)


def _typed(hint: Any, value: Any, name: str) -> Any:
    """A value of the annotated type, a list as a tuple; ValueError for any other."""
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{name} is {value!r}; allowed: a list")
        return tuple(_typed(get_args(hint)[0], item, name) for item in value)
    accepted = (int, float) if hint is float else hint
    # bool is an int to Python, not to a reader of the profile.
    wrong = not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool)
    if wrong or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{name} is {value!r}; allowed: {_TYPE_NAMES[hint]}")
    return value


def named_profile(kind: str, name: str, config_type: type[Config]) -> Profile[Config]:
    """The profile KIND/NAME.yaml of those that ship, or of the folder that NEARKV_PROFILES names.

    Raises:
        ValueError: lists the profiles there are; NEARKV_PROFILES is no folder, or has a file under a name
            that ships, too, so that one name never means two devices.

    """
    path = _profile_path(kind, name, os.environ.get(OWN_PROFILES))
    # A generic class is no Hashable to mypy, which a cached function asks for.
    return cast(Profile[Config], _read_once(path, kind, cast(Hashable, config_type)))


@cache
def _read_once(path: Path, kind: str, config_type: Hashable) -> Profile[Any]:
    return read_profile(path, kind, cast(type[Any], config_type))


@cache
def _profile_path(kind: str, name: str, own: str | None) -> Path:
    folders = [PROFILE_FOLDER / kind]
    if own is not None:
        if not Path(own).is_dir():
            raise ValueError(f"{OWN_PROFILES} is {own!r}; allowed: a folder with profiles KIND/NAME.yaml")
        folders.append(Path(own) / kind)
    found: dict[str, Path] = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.yaml")):
        if path.stem in found:
            raise ValueError(f"{path}: {kind} profile {path.stem} is there twice; allowed: another name")
        found[path.stem] = path
    if name not in found:
        raise ValueError(f"{kind} profile is {name!r}; allowed: {', '.join(sorted(found))}")
    return found[name]
