"""A whole decode step on a machine: attention, everything else, and weights that do not lie with the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_sim.hardware.machine import ModelMachine
from nearkv_sim.hardware.machine_attention import AttentionStep, attention_step
from nearkv_sim.hardware.machine_units import RooflineUnit
from nearkv_sim.hardware.model_shapes import ModelShape
from nearkv_sim.hardware.roofline_layers import decode_step


@dataclass(frozen=True)
class DecodeTime:
    """One decode step, its parts one after the other.

    Attributes:
        attention: its attention.
        rest_ps: projections, feed-forward network and element-wise kernels on the first processor.
        weights_ps: moving weights to it that lie elsewhere.
        link_ps: how long links are busy with any of it.

    """

    attention: AttentionStep
    rest_ps: int
    weights_ps: int
    link_ps: int

    @property
    def time_ps(self) -> int:
        """Sum of the parts."""
        return self.attention.timing.time_ps + self.rest_ps + self.weights_ps

    @property
    def serial_ps(self) -> int:
        """The same if no resource ever worked beside another."""
        return sum(self.attention.timing.busy_ps.values()) + self.rest_ps + self.weights_ps


def decode_time(
    machine: ModelMachine, shape: ModelShape, context_tokens: int, batch: int, *, near_data: bool = True
) -> DecodeTime:
    """Time one decode step; arguments and errors are those of `attention_step`."""
    attention = attention_step(machine, shape, context_tokens, batch, near_data=near_data)
    name, unit = next((n, u) for n, u in machine.units.items() if isinstance(u, RooflineUnit))
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
    return DecodeTime(attention, rest.time_ps, weights_ps, link_ps)
