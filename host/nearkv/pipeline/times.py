"""Times of a layer's parts on a machine, with the cap on its links."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nearkv.machine import LinkDescription, Machine, Timing
from nearkv.pipeline.roles import Roles, find_roles
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.work import GpuKernel


class StepTimes:
    """Times of one layer's parts on a machine; transfers are remembered, as all layers ask for the same.

    Attributes:
        roles: of the machine.

    """

    def __init__(self, machine: Machine, settings: PipelineSettings) -> None:
        """Find the roles; ValueError where the method needs a part that the machine does not have."""
        self.machine, self.settings = machine, settings
        self.roles: Roles = find_roles(machine)
        needed = {Method.NEAR_DATA: ("cpu", "card"), Method.HOST_SCORING: ("cpu",)}
        for role in needed.get(settings.method, ()):
            if not getattr(self.roles, role):
                raise ValueError(
                    f"machine {machine.name} has no {role}; method {settings.method.value} needs one"
                )
        self._remembered: dict[tuple[str, str, int, int, int], Timing] = {}

    def scored(self, processor: str, nbytes: int, code_bits: int = 8) -> Timing:
        """Keys or codes read in place."""
        return self.machine.scan(processor, nbytes, code_bits=code_bits)

    def kernel(self, kernel: GpuKernel) -> Timing:
        """On the GPU."""
        return self.machine.compute(self.roles.gpu, kernel.flops, kernel.nbytes)

    def moved(self, source: str, target: str, nbytes: int, piece: int = 0, region: int = 0) -> Timing:
        """A transfer, its links under the cap; with `piece`, of pieces scattered over `region` bytes."""
        key = (source, target, nbytes, piece, region)
        if key not in self._remembered:
            self._remembered[key] = self._moved(*key)
        return self._remembered[key]

    def _moved(self, source: str, target: str, nbytes: int, piece: int, region: int) -> Timing:
        if piece:
            timing = self.machine.gather(source, target, nbytes, piece, region)
        else:
            timing = self.machine.transfer(source, target, nbytes)
        busy = dict(timing.busy_ps)
        if source == self.roles.cold_tier and source not in busy:
            # A peer link stands for its ends: the drive's share is what it takes on its other path.
            other = self.machine.transfer(source, self.roles.hot_tier, nbytes).busy_ps
            busy[source] = min(other.get(source, 0), timing.time_ps)
        lanes = _directed(self.machine.description.path(source, target), source)
        occupied = {
            lanes.get(name, name): math.ceil(time / self.settings.link_cap) if name in lanes else time
            for name, time in busy.items()
        }
        longer_ps = max(occupied.values()) - max(busy.values())
        return Timing(timing.time_ps + longer_ps, nbytes, occupied)


def _directed(path: Iterable[LinkDescription], source: str) -> dict[str, str]:
    """Names of a path's wires with their direction: links carry both ways at once."""
    found, here = {}, source
    for link in path:
        outward = here == link.inner
        here = link.outer if outward else link.inner
        found[link.wires] = f"{link.wires} {'out' if outward else 'in'}"
    return found
