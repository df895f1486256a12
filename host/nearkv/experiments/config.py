"""Experiment configuration: one frozen description of a run, read from strict YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from nearkv.experiments.selection import HeadMerge, SelectionUnit
from nearkv.experiments.strict import apply_overrides, dump_yaml, load_yaml, parse
from nearkv.pipeline.settings import LEAST_LINK_CAP
from nearkv.policy.base import StreamInfo
from nearkv.policy.registry import build_policy, default_options, find_policy
from nearkv.trace.format import AttentionTrace, HeadStream
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat


class ScoreFormat(Enum):
    """What the scorer streams of a key block."""

    INT8 = "int8"
    INT4 = "int4"

    @property
    def key_format(self) -> KeyFormat:
        """The same as the layout's number."""
        return KeyFormat[self.name]


class Selection(Enum):
    """Which tokens a step attends."""

    SCORE_ALL = "score_all"  # score every token, attend the best, fetch those that are not hot
    HOT_ONLY = "hot_only"  # attend the hot pool, score and fetch nothing


@dataclass(frozen=True)
class PolicyConfig:
    """A policy by installed name or `module:Class`, and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExperimentConfig:
    """Parameters of one run.

    Attributes:
        trace: attention trace; relative to the configuration's file.
        policy: placement policy: `name`, of `nearkv policies` or a class of your own as module:Class, and
            `options`, its keyword arguments, by default their defaults.
        streams: which (layer, kv head) streams of the trace, such as `L12.H0`; null for all.
        design: named design of the scorer; `nearkv designs` lists them.
        transport: how it is reached: tlm (exact arithmetic, cycles by formula), rtl (compiled scorer) or pcie
            (the kernel in RTL, every TLP simulated; a small design and few steps: kilobytes per second).
        link: preset of the link between host and device: smartssd, alveo_u50, gen4_x4, gen4_x16, gen5_x16;
            null for a transport that takes none.
        recent_fraction: newest share of the context that is pinned in the hot pool, 0 to hot_fraction.
        hot_fraction: share of the context that the hot pool holds, tail included, 0 to 1.
        select_fraction: share of the context that a step selects, above 0, to 1.
        sinks: first tokens that are pinned.
        format: what the scorer streams: int8 or int4.
        selection: which tokens a step attends: score_all (score every token, attend the best) or hot_only
            (attend the hot pool, score and fetch nothing).
        selection_unit: who shares one set of selected tokens: query_head, kv_head (the query heads that share
            keys) or layer (the layer's streams that are run). Rows are read for all heads of a KV head.
        head_merge: how heads become one score for it: normalised (softmax of each head) or raw (base-2 logits
            as they come, the articles' way).
        uniform_score: score sealed hot tokens on the device as well, from the same codes as cold ones, so
            that what is selected does not depend on where tokens are.
        machine: described machine that steps are timed on, of `nearkv machine` or a YAML file: one with a
            card and a drive, or with three PIM tiers; null for none.
        model: shape that the trace's streams stand for there, of `nearkv size`; with a machine.
        batch: sequences of a step on the machine.
        context_tokens: context there; null for the trace's own.
        link_cap: share of every link's time there that KV traffic may take, 0.001 to 1.
        machine_every: time every so many-th step there; the first always.
        steps: decode steps, at most the trace's; null for all.
        seed: of policies that draw random numbers.

    A value out of range raises ValueError, which quotes it and says what is allowed.

    """

    trace: Path
    policy: PolicyConfig
    streams: tuple[str, ...] | None = None
    design: str = "smartssd_ku15p"
    transport: str = "tlm"
    link: str | None = "smartssd"
    recent_fraction: float = 0.10
    hot_fraction: float = 0.20
    select_fraction: float = 0.10
    sinks: int = 4
    format: ScoreFormat = ScoreFormat.INT8
    selection: Selection = Selection.SCORE_ALL
    selection_unit: SelectionUnit = SelectionUnit.KV_HEAD
    head_merge: HeadMerge = HeadMerge.NORMALISED
    uniform_score: bool = False
    machine: str | None = None
    model: str | None = None
    batch: int = 1
    context_tokens: int | None = None
    link_cap: float = 1.0
    machine_every: int = 8
    steps: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value that can be checked without the trace."""
        get_design(self.design)
        _require(0 <= self.hot_fraction <= 1, "hot_fraction", self.hot_fraction, "0 to 1")
        _require(
            0 <= self.recent_fraction <= self.hot_fraction,
            "recent_fraction",
            self.recent_fraction,
            f"0 to hot_fraction, {self.hot_fraction}",
        )
        _require(0 < self.select_fraction <= 1, "select_fraction", self.select_fraction, "above 0, to 1")
        _require(self.sinks >= 0, "sinks", self.sinks, "0 or more")
        _require(self.steps is None or self.steps >= 1, "steps", self.steps, "1 or more, or null for all")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        _require(self.streams is None or len(self.streams) > 0, "streams", [], "some names, or null for all")
        if self.selection is Selection.HOT_ONLY:
            reason = "nothing is scored with selection hot_only"
            _require(not self.uniform_score, "uniform_score", self.uniform_score, f"false: {reason}")
            _require(self.format is ScoreFormat.INT8, "format", self.format.value, f"the default: {reason}")
            merge = self.head_merge
            _require(merge is HeadMerge.NORMALISED, "head_merge", merge.value, f"the default: {reason}")
        if self.selection_unit is SelectionUnit.QUERY_HEAD:
            merge, reason = self.head_merge, "a query head that selects by itself merges nothing"
            _require(merge is HeadMerge.NORMALISED, "head_merge", merge.value, f"the default: {reason}")
        self._check_machine()
        build_policy(self.policy.name, StreamInfo(0, 0, 1, self.seed), self.policy.options)
        options = default_options(find_policy(self.policy.name)) | dict(self.policy.options)
        object.__setattr__(self, "policy", PolicyConfig(self.policy.name, options))

    def _check_machine(self) -> None:
        for name in ("batch", "machine_every"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        context, cap = self.context_tokens, self.link_cap
        _require(context is None or context >= 1, "context_tokens", context, "1 or more, or null")
        _require(LEAST_LINK_CAP <= cap <= 1, "link_cap", cap, f"{LEAST_LINK_CAP} to 1")
        if self.machine is not None:
            _require(self.model is not None, "model", None, "a model's name, with a machine")
            return
        for name, default in (
            ("model", None),
            ("batch", 1),
            ("context_tokens", None),
            ("link_cap", 1.0),
            ("machine_every", 8),
        ):
            value = getattr(self, name)
            _require(value == default, name, value, f"{default}, without a machine it has no effect")

    @property
    def design_config(self) -> DesignConfig:
        """The named design."""
        return get_design(self.design)

    @property
    def notes(self) -> tuple[str, ...]:
        """Settings that have no effect in this combination, one sentence each."""
        notes = []
        if not find_policy(self.policy.name).bounded:
            notes.append(
                f"policy {self.policy.name} keeps every token hot:"
                " hot_fraction, recent_fraction and sinks have no effect"
            )
        if self.machine is not None and self.uniform_score:
            notes.append("on the machine the card scores cold tokens only: uniform_score has no effect there")
        return tuple(notes)

    def streams_of(self, trace: AttentionTrace) -> tuple[HeadStream, ...]:
        """The trace's streams that this experiment runs.

        Raises:
            ValueError: an unknown or repeated stream, more steps than the trace has, a head_dim that
                the design does not score.

        """
        by_name = {stream.name: stream for stream in trace.streams}
        names = tuple(by_name) if self.streams is None else self.streams
        for name in names:
            _require(name in by_name, "stream", repr(name), ", ".join(by_name))
            _require(names.count(name) == 1, "stream", repr(name), "each stream once")
        _require(
            self.steps is None or self.steps <= trace.steps,
            "steps",
            self.steps,
            f"1 to {trace.steps}",
        )
        self.design_config.check_head_dim(trace.head_dim)
        return tuple(by_name[name] for name in names)

    def to_mapping(self) -> dict[str, Any]:
        """Every field as plain data, in the order of the fields, as a configuration file would give it."""
        content: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, PolicyConfig):
                content[name] = {"name": value.name, "options": dict(value.options)}
            elif isinstance(value, Enum):
                content[name] = value.value
            elif isinstance(value, tuple):
                content[name] = list(value)
            else:
                content[name] = value.as_posix() if isinstance(value, Path) else value
        return content

    def to_yaml(self) -> str:
        """The configuration file that gives this configuration."""
        return dump_yaml(self.to_mapping())


def load_config(path: Path, overrides: Sequence[str] = ()) -> ExperimentConfig:
    """Read a configuration file and apply `key=value` overrides.

    A relative trace is looked for beside the file, one that an override names in the current directory.

    Raises:
        ValueError: names the file, the key and what is allowed. OSError where it cannot be read.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from None
    content = load_yaml(text, str(path))
    written_trace = content.get("trace")
    apply_overrides(content, overrides)
    config = parse(ExperimentConfig, content, str(path))
    if content["trace"] is written_trace:
        config = replace(config, trace=_simplified(path.parent / config.trace))
    return config


def _simplified(path: Path) -> Path:
    """The path without `..`, where that leads to the same file: behind a symbolic link it may not."""
    simple = Path(os.path.normpath(path))
    return simple if simple.resolve() == path.resolve() else path


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value}; allowed: {allowed}")
