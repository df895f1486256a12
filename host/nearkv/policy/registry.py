"""Finds policies: installed ones by entry point, a user's own as `module:Class`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from nearkv.policy.base import Policy, StreamInfo

GROUP = "nearkv.policies"


def installed_policies() -> dict[str, type[Policy]]:
    """Every installed policy by name, in alphabetical order."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    return {name: _check(name, points[name].load()) for name in sorted(points)}


def find_policy(name: str) -> type[Policy]:
    """The policy class called `name`, or the one that `module:Class` names.

    A module is looked for like an imported one, and in the current directory.

    Raises:
        ValueError: unknown name, a module that cannot be imported, or a class that is no policy.

    """
    module_name, separator, class_name = name.partition(":")
    if not separator:
        points = {point.name: point for point in entry_points(group=GROUP)}
        if name not in points:
            raise ValueError(f"policy is {name!r}; allowed: {', '.join(sorted(points))}, or module:Class")
        return _check(name, points[name].load())
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # the `nearkv` script, unlike `python -m`, does not search it
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ValueError(f"policy is {name!r}; allowed: module:Class with a module that can be imported")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"policy {name!r}: cannot import {module_name!r} ({error})") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"policy {name!r}: {module_name!r} raised {describe(error)}") from error
    if not hasattr(module, class_name):
        raise ValueError(f"policy {name!r}: module {module_name!r} has no {class_name!r}")
    return _check(name, getattr(module, class_name))


def options_of(policy: type[Policy]) -> dict[str, inspect.Parameter]:
    """A policy's options: the parameters of its constructor beside `stream`."""
    parameters = list(inspect.signature(policy).parameters.values())
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters[1:] if parameter.kind in named}


def default_options(policy: type[Policy]) -> dict[str, Any]:
    """The defaults of a policy's options, those that YAML can hold."""
    plain = (bool, int, float, str, type(None))
    return {key: p.default for key, p in options_of(policy).items() if isinstance(p.default, plain)}


def build_policy(name: str, stream: StreamInfo, options: Mapping[str, Any]) -> Policy:
    """Make the policy of one stream.

    Raises:
        ValueError: an unknown policy or option, a missing one, a value of the wrong type or range, or
            whatever else the policy's constructor raises.

    """
    policy = find_policy(name)
    allowed = options_of(policy)
    for key, value in options.items():
        if key not in allowed:
            raise ValueError(f"policy {name} has no option {key!r}; allowed: {', '.join(allowed) or 'none'}")
        _check_type(f"policy option {key}", value, allowed[key].default)
    for key, parameter in allowed.items():
        if parameter.default is inspect.Parameter.empty and key not in options:
            raise ValueError(f"policy {name} needs the option {key!r}")
    try:
        return policy(stream, **options)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"policy {name}: its constructor raised {describe(error)}") from error


def describe(error: BaseException) -> str:
    """An error of a user's own code for one line: its kind and what it says."""
    return f"{type(error).__name__}: {error}"


def summary(policy: type[Policy]) -> str:
    """First line of the class's docstring."""
    return (inspect.getdoc(policy) or "").partition("\n")[0]


def _check(name: str, found: object) -> type[Policy]:
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise ValueError(f"policy {name!r} is {found!r}; allowed: a subclass of nearkv.policy.base.Policy")
    if inspect.isabstract(found):
        raise ValueError(f"policy {name!r} does not implement place()")
    return found


def _check_type(what: str, value: object, default: object) -> None:
    """An option must have the type of its default (an int may stand for a float)."""
    if default is None or default is inspect.Parameter.empty:
        return
    allowed = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, allowed) or isinstance(value, bool) != isinstance(default, bool):
        raise ValueError(f"{what} is {value!r}; allowed: {type(default).__name__}")
