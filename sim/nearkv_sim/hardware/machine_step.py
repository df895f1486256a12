"""A whole decode step on a machine: attention, everything else, and weights that do not lie with the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_attention import AttentionStep, attention_step
from nearkv_sim.hardware.machine_units import RooflineUnit
from nearkv_sim.hardware.model_shapes import ModelShape
from nearkv_sim.hardware.roofline_layers import StepTime, decode_step, prefill


@dataclass(frozen=True)
class DecodeTime:
    """One decode step, its parts one after the other.

    Attributes:
        attention: its attention.
        rest: projections, feed-forward network and element-wise kernels on the first processor.
        weights_ps: moving weights to it that lie elsewhere.
        link_ps: how long links are busy with any of it.

    """

    attention: AttentionStep
    rest: StepTime
    weights_ps: int
    link_ps: int

    @property
    def time_ps(self) -> int:
        """Sum of the parts."""
        return self.attention.timing.time_ps + self.rest.time_ps + self.weights_ps

    @property
    def serial_ps(self) -> int:
        """The same if no resource ever worked beside another."""
        return sum(self.attention.timing.busy_ps.values()) + self.rest.time_ps + self.weights_ps


def prefill_time(machine: ModelMachine, shape: ModelShape, tokens: int, batch: int) -> StepTime:
    """Time the pass that reads prompts on the first processor; where the KV then goes is not counted."""
    _, unit = _first(machine)
    return prefill(unit.config, shape, tokens, batch, processors=unit.count)


def decode_time(
    machine: ModelMachine,
    shape: ModelShape,
    context_tokens: int,
    batch: int,
    *,
    select_fraction: float = 0.1,
    near_data: bool = True,
) -> DecodeTime:
    """Time one decode step; arguments and errors are those of `attention_step`."""
    attention = attention_step(
        machine, shape, context_tokens, batch, select_fraction=select_fraction, near_data=near_data
    )
    name, unit = _first(machine)
    home = machine.tier_of(name)
    rest = decode_step(unit.config, shape, context_tokens, batch, processors=unit.count, attention=False)
    links = {link.name for link in machine.description.links}
    link_ps = sum(busy for resource, busy in attention.timing.busy_ps.items() if resource in links)
    weights_ps = 0
    for share in attention.shares:
        if share.weight_bytes and share.tier != home:
            transfer = machine.transfer(share.tier, home, share.weight_bytes)
            weights_ps += transfer.time_ps
            link_ps += sum(busy for resource, busy in transfer.busy_ps.items() if resource in links)
    return DecodeTime(attention, rest, weights_ps, link_ps)


def _first(machine: ModelMachine) -> tuple[str, RooflineUnit]:
    """The processor that attends; `attention_step` refuses a machine without one."""
    return next((name, unit) for name, unit in machine.units.items() if isinstance(unit, RooflineUnit))
