"""Energy of DRAM commands, by component, from the profile's constants; without background and refresh."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_sim.hardware.dram.channel import DramCounters
from nearkv_sim.hardware.dram.config import DramConfig


@dataclass(frozen=True)
class DramEnergy:
    """Energy in pJ, by component.

    Attributes:
        activate_pj: opening and closing rows.
        array_pj: cells to the banks' edge.
        path_pj: from there to the interface, on the die and through the stack.
        interface_pj: pins or interposer.
        mac_pj: multiply-accumulate units in the memory.

    """

    activate_pj: float
    array_pj: float
    path_pj: float
    interface_pj: float
    mac_pj: float = 0.0

    @property
    def total_pj(self) -> float:
        """Sum of the components."""
        return self.activate_pj + self.array_pj + self.path_pj + self.interface_pj + self.mac_pj


def transfer_energy(config: DramConfig, counters: DramCounters) -> DramEnergy:
    """Energy of reads and writes over the interface; whole accesses count."""
    moved_bytes = (counters.reads + counters.writes) * config.access_bytes
    path_pj_per_byte = config.group_path_pj_per_byte + config.channel_path_pj_per_byte
    return DramEnergy(
        activate_pj=counters.activates * config.activate_pj,
        array_pj=moved_bytes * config.array_pj_per_byte,
        path_pj=moved_bytes * path_pj_per_byte,
        interface_pj=moved_bytes * config.interface_pj_per_byte,
    )
