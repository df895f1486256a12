"""Strict YAML: unknown, missing and repeated keys and values of the wrong type are refused by name."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

T = TypeVar("T")

TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice (PyYAML silently keeps the last) and aliases.

    A few nested aliases stand for gigabytes, and one alias for a value that holds itself.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has an alias; allowed: values written out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"line {node.start_mark.line + 1}: the key {key!r} is given twice")
        return super().construct_mapping(node, deep)


class _PlainDumper(yaml.SafeDumper):
    """Safe YAML that quotes text which `_StrictLoader` would take for a number."""


# YAML 1.1, which PyYAML reads, takes 1e-3 for text; YAML 1.2 (10.3.2, core schema) and everybody else do not.
for _class in (_StrictLoader, _PlainDumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )


def load_value(text: str) -> Any:
    """One YAML value; YAMLError, or ValueError where this reader is stricter."""
    try:
        return yaml.load(text, _StrictLoader)  # a SafeLoader
    except RecursionError:
        raise ValueError("nested too deeply") from None


def load_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse a YAML mapping.

    Raises:
        ValueError: names `where` and the reason: not YAML, not a mapping, a key given twice, an alias.

    """
    try:
        found = load_value(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where}: not YAML ({error})") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where}: holds {type(found).__name__}; allowed: a mapping of keys to values")
    return found


def names_in(folder: Path) -> list[str]:
    """Names of the YAML files in a folder of ours, without their suffix."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def load_named(cls: type[T], folder: Path, name: str, what: str) -> T:
    """Build a dataclass from a file of ours by name, or from a file with suffix .yaml.

    Raises:
        ValueError: an unknown name, which calls it `what`, or as `load_yaml` and `parse`. OSError where the
            file cannot be read.

    """
    path = Path(name)
    if path.suffix != ".yaml":
        if name not in names_in(folder):
            raise ValueError(f"{what} is {name!r}; allowed: {', '.join(names_in(folder))}, or a .yaml file")
        path = folder / f"{name}.yaml"
    return parse(cls, load_yaml(path.read_text(encoding="utf-8"), str(path)), str(path))


def dump_yaml(content: Mapping[str, Any]) -> str:
    """A mapping as text from which `load_yaml` gets the same."""
    return yaml.dump(content, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)


def apply_overrides(content: dict[str, Any], overrides: Sequence[str]) -> None:
    """Set `key=value` (dotted keys reach into mappings, values are YAML) in a parsed configuration.

    Raises:
        ValueError: no `=`, no value, a value that `load_yaml` would refuse, a dotted key through something
            that is no mapping, a value that an earlier override has set.

    """
    given: dict[str, str] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not all(key.split(".")):
            raise ValueError(f"override is {override!r}; allowed: key=value, such as policy.name=recency")
        if not text.strip():  # YAML would read null, which is the default of many keys
            raise ValueError(f"override is {override!r}; allowed: a value, {key}=null for none")
        for earlier, words in given.items():
            if f"{earlier}.".startswith(f"{key}."):
                raise ValueError(f"override {override!r} replaces {words!r}; allowed: one of them")
        given[key] = override
        try:
            value = load_value(text)
        except yaml.YAMLError:
            raise ValueError(f"override {override!r}: {text!r} is not a YAML value") from None
        except ValueError as error:
            raise ValueError(f"override {override!r}: {error}") from None
        *parents, last = key.split(".")
        target = content
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ValueError(f"override {override!r}: {parent!r} is {target!r}, not a mapping")
        target[last] = value


def parse(cls: type[T], content: Mapping[str, Any], where: str) -> T:
    """Build the dataclass `cls` from a mapping, checking keys and types against its annotations.

    Understands bool, int, float, str, Path, Enum (by value), tuple[X, ...], X | None, nested dataclasses
    and Mapping[str, Any].

    Raises:
        ValueError: names `where`, the key and what is allowed; also whatever `cls` itself refuses.

    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    for key in content:
        if key not in fields:
            raise ValueError(f"{where}: unknown key {key!r}; allowed: {', '.join(fields)}")
    values = {}
    for name, field in fields.items():
        if name in content:
            values[name] = _convert(hints[name], content[name], f"{where}: {name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}: the key {name!r} is missing")
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _convert(hint: Any, value: Any, what: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):  # only X | None occurs
        if value is None:
            return None
        (hint,) = (arm for arm in get_args(hint) if arm is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ValueError(f"{what} is {value!r}; allowed: a mapping")
        return parse(hint, value, what)  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise ValueError(f"{what} is {value!r}; allowed: a list")
        return tuple(_convert(get_args(hint)[0], item, what) for item in value)
    if get_origin(hint) is not None:  # Mapping[str, Any]
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError(f"{what} is {value!r}; allowed: a mapping with text keys")
        _require_plain(value, what)
        return dict(value)
    if issubclass(hint, Enum):
        allowed = [member.value for member in hint]
        if value not in allowed:
            raise ValueError(f"{what} is {value!r}; allowed: {', '.join(allowed)}")
        return hint(value)
    return _scalar(hint, value, what)


def _require_plain(value: Any, what: str) -> None:
    """Refuse what JSON results could not hold: dates, bytes, sets, infinities, keys that are no text."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{what} has the key {key!r}; allowed: text")
            _require_plain(item, f"{what}: {key}")
    elif isinstance(value, list):
        for item in value:
            _require_plain(item, what)
    elif not isinstance(value, (str, int, types.NoneType)) and not (
        isinstance(value, float) and math.isfinite(value)
    ):
        raise ValueError(
            f"{what} is {value!r}; allowed: text, finite numbers, true, false, null, lists, mappings"
        )


def _scalar(hint: type, value: Any, what: str) -> Any:
    accepts = {float: (int, float), Path: (str,)}.get(hint, (hint,))
    # bool is an int to Python, not to a reader of the configuration.
    if not isinstance(value, accepts) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(f"{what} is {value!r}; allowed: {TYPE_NAMES[hint]}")
    try:
        return hint(value)
    except OverflowError:  # a whole number beyond every float
        raise ValueError(f"{what} is {value!r}; allowed: {TYPE_NAMES[hint]} within ±1.8e308") from None
