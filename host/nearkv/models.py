"""Models by name, for whoever asks what a step costs. Implementations: entry points `nearkv.models`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from nearkv.pipeline.work import ModelGeometry

ENTRY_POINT_GROUP = "nearkv.models"


def open_model(name: str, implementation: str = "model") -> ModelGeometry:
    """The shape of a model.

    Args:
        name: one that the implementation knows.
        implementation: an entry point of the group `nearkv.models`; its object is called with the name.

    Raises:
        ValueError: an unknown implementation or name; lists the known ones.

    """
    found = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if implementation not in found:
        raise ValueError(f"models of kind {implementation!r}; allowed: {', '.join(sorted(found))}")
    factory: Callable[[str], ModelGeometry] = found[implementation].load()
    return factory(name)
