"""`nearkv policies`: the installed placement policies and their options."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from nearkv.command import Command
from nearkv.policy.base import Policy
from nearkv.policy.registry import installed_policies, options_of, summary


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what stdout gets")


def _run(args: argparse.Namespace) -> int:
    described = [_describe(name, policy) for name, policy in installed_policies().items()]
    if args.format == "json":
        print(json.dumps(described, indent=2))
        return 0
    width = max(len(entry["name"]) for entry in described)
    for entry in described:
        print(f"{entry['name'].ljust(width)}  {entry['description']}")
        if entry["options"]:
            options = ", ".join(f"{key}={value}" for key, value in entry["options"].items())
            print(f"{' ' * width}  options: {options}")
    return 0


def _describe(name: str, policy: type[Policy]) -> dict[str, Any]:
    return {
        "name": name,
        "description": summary(policy),
        "needs_future": policy.needs_future,
        "bounded": policy.bounded,
        "options": {
            key: "required" if parameter.default is inspect.Parameter.empty else parameter.default
            for key, parameter in options_of(policy).items()
        },
    }


COMMAND = Command("list the placement policies", _configure, _run)
