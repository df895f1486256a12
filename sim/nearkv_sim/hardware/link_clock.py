"""Simulated time as an integer."""

from __future__ import annotations

import simpy

__all__ = ["now_ps"]


def now_ps(env: simpy.Environment) -> int:
    """The environment's time in ps; SimPy's own type admits fractions, which nothing here produces."""
    assert isinstance(env.now, int), "a fractional delay has entered the simulation"
    return env.now
