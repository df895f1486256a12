"""Presets of the pipeline: strict YAML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nearkv.experiments.strict import load_named, names_in
from nearkv.pipeline.settings import PipelineSettings

PRESET_FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True, kw_only=True)
class PipelinePreset:
    """A deployment of the pipeline.

    Attributes:
        description: one line.
        source: who advises it.
        machine: name of a machine.
        context_tokens: of every sequence.
        batches: sequences per step that it is meant for, ascending.
        pipeline: its settings.

    ValueError for a context or batch below 1, or batches that do not ascend.

    """

    description: str
    source: str
    machine: str
    context_tokens: int
    batches: tuple[int, ...]
    pipeline: PipelineSettings

    def __post_init__(self) -> None:
        """Check context and batches."""
        if self.context_tokens < 1:
            raise ValueError(f"context_tokens is {self.context_tokens!r}; allowed: from 1")
        if not self.batches or self.batches[0] < 1 or list(self.batches) != sorted(set(self.batches)):
            raise ValueError(f"batches is {list(self.batches)}; allowed: ascending from 1")


def preset_names() -> list[str]:
    """Names of the presets that ship."""
    return names_in(PRESET_FOLDER)


def load_preset(name: str) -> PipelinePreset:
    """A preset by name, or from a file with suffix .yaml.

    Raises:
        ValueError: an unknown name, or a bad file: names it, the key and what is allowed.

    """
    return load_named(PipelinePreset, PRESET_FOLDER, name, "preset")
