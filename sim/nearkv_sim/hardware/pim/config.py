"""What one PIM device adds to its DRAM: where the units are, how often they take a command, energies."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from nearkv_sim.hardware.dram.command import Command
from nearkv_sim.hardware.dram.config import MOST, MOST_CYCLES, DramConfig, dram_profile, require_energy
from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.profile import Profile, named_profile

KIND = "pim"
BANK, BANK_GROUP, BUFFER_DIE = LEVELS = ("bank", "bank_group", "buffer_die")


@dataclass(frozen=True)
class LevelCommands:
    """The commands of one level: open, close, multiply."""

    activate: Command
    precharge: Command
    mac: Command


COMMANDS = {
    BANK: LevelCommands(Command.ACT_AB, Command.PREA, Command.MAC_AB),
    BANK_GROUP: LevelCommands(Command.ACT_SB, Command.PRE_SB, Command.MAC_SB),
    BUFFER_DIE: LevelCommands(Command.ACT_PB, Command.PRE_PB, Command.MAC_PB),
}


@dataclass(frozen=True, kw_only=True)
class PimConfig:
    """Units of a PIM device. ValueError for what no device can be.

    Attributes:
        dram: profile of the DRAM they sit in.
        level: bank, bank_group or buffer_die.
        units_per_channel: that one MAC command starts.
        unit_bytes: operands a unit takes from its bank per command.
        mac_interval: cycles between MAC commands of one channel.
        mac_interval_capped: the same under the device's power cap.
        queue_entries: requests a channel's controller sees at a time.
        mac_pj: one multiply-accumulate.

    """

    dram: str
    level: str
    units_per_channel: int
    unit_bytes: int
    mac_interval: int
    mac_interval_capped: int
    queue_entries: int
    mac_pj: float

    def __post_init__(self) -> None:
        """Check the values against each other and the DRAM."""
        if self.level not in LEVELS:
            raise ValueError(f"level is {self.level!r}; allowed: {', '.join(LEVELS)}")
        for name in ("units_per_channel", "unit_bytes", "queue_entries"):
            require_integer(name, getattr(self, name), 1, MOST)
        require_integer("mac_interval", self.mac_interval, 1, MOST_CYCLES)
        require_integer("mac_interval_capped", self.mac_interval_capped, self.mac_interval, MOST_CYCLES)
        require_energy("mac_pj", self.mac_pj, zero=False)
        if not isinstance(self.dram, str):
            raise ValueError(f"dram is {self.dram!r}; allowed: the name of a DRAM profile")
        dram = self.dram_config
        allowed = {
            BANK: f"a divisor of {dram.banks_per_channel} banks that leaves one per bank group",
            BANK_GROUP: f"{dram.banks_per_channel // dram.banks}, the bank groups",
            BUFFER_DIE: f"{dram.pseudo_channels}, the pseudo-channels",
        }[self.level]
        fits = {
            BANK: dram.banks_per_channel % self.units_per_channel == 0 and self.banks_per_unit <= dram.banks,
            BANK_GROUP: self.units_per_channel == dram.banks_per_channel // dram.banks,
            BUFFER_DIE: self.units_per_channel == dram.pseudo_channels,
        }[self.level]
        if not fits:
            raise ValueError(f"units_per_channel is {self.units_per_channel}; allowed: {allowed}")
        if self.unit_bytes % dram.access_bytes:
            raise ValueError(
                f"unit_bytes is {self.unit_bytes}; allowed: multiples of an access, {dram.access_bytes}"
            )

    @property
    def dram_config(self) -> DramConfig:
        """The DRAM the units sit in."""
        return dram_profile(self.dram).config

    @property
    def banks_per_unit(self) -> int:
        """Banks that a unit takes its operands from, in turn."""
        return self.dram_config.banks_per_channel // self.units_per_channel

    @property
    def commands(self) -> LevelCommands:
        """Commands of this level."""
        return COMMANDS[self.level]

    @property
    def banks_per_activate(self) -> int:
        """Banks that one activation opens."""
        dram = self.dram_config
        return {
            BANK: dram.banks_per_channel,
            BANK_GROUP: dram.banks_per_channel // dram.banks,
            BUFFER_DIE: dram.pseudo_channels,
        }[self.level]

    @property
    def command_bytes(self) -> int:
        """Operand bytes that one MAC command takes from one channel's banks."""
        return self.units_per_channel * self.unit_bytes

    def interval(self, *, power_capped: bool) -> int:
        """Cycles between MAC commands."""
        return self.mac_interval_capped if power_capped else self.mac_interval

    def command_rate_bound(self, *, power_capped: bool = False) -> Fraction:
        """Bytes per second that no sequence of commands exceeds: a MAC command in every interval."""
        dram = self.dram_config
        per_interval = dram.channels * self.command_bytes * 10**12
        return per_interval / (self.interval(power_capped=power_capped) * dram.clock_ps)


def pim_profile(name: str) -> Profile[PimConfig]:
    """The shipped PIM profile `name`; ValueError lists those there are."""
    return named_profile(KIND, name, PimConfig)
