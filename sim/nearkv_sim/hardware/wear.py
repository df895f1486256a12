"""Wear of a drive: what the host writes, what the NAND gets, and how long that can go on.

Write amplification has two causes, which multiply:
* a write below the mapping's unit is read, modified and written whole: unit/size for a random write;
* garbage collection moves valid data. For uniform random writes and greedy collection it is close to
  (1 + s)/(2·s) with s the spare share (Agarwal and Marrow, "A closed-form expression for write amplification
  in NAND flash", GLOBECOM workshops 2010); sequential writes free whole blocks: 1.
A rating in drive writes per day holds for one access pattern; divided by this model's amplification of that
pattern it becomes a budget of NAND bytes, which any other pattern draws on.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig

DAYS_PER_YEAR = 365
PS_PER_DAY = 86_400 * 10**12


@dataclass(frozen=True, kw_only=True)
class DriveConfig:
    """What a drive's data sheet says beside its timing. ValueError for a value that no drive has.

    Attributes:
        ssd: profile of kind ssd that times it and holds its geometry.
        read_bandwidth_bytes_per_s, write_bandwidth_bytes_per_s: sequential, as published.
        active_power_w: while it reads or writes.
        drive_writes_per_day, warranty_years: endurance rating.
        rated_write_bytes: size of the random writes that the rating holds for.

    """

    ssd: str
    read_bandwidth_bytes_per_s: int
    write_bandwidth_bytes_per_s: int
    active_power_w: float
    drive_writes_per_day: float
    warranty_years: int
    rated_write_bytes: int

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, value in vars(self).items():
            if name != "ssd" and not value > 0:
                raise ValueError(f"{name} is {value!r}; allowed: above 0")
        named_profile("ssd", self.ssd, SsdConfig)

    @property
    def origin(self) -> str:
        """Where its times come from."""
        return "NVMe drive model"

    @property
    def peak_bytes_per_s(self) -> int:
        """All NAND channels; its link is a part of its own, and often slower."""
        return self.config.channels * self.config.channel_bytes_per_s

    @property
    def config(self) -> SsdConfig:
        """Geometry and timing."""
        config: SsdConfig = named_profile("ssd", self.ssd, SsdConfig).config
        return config

    @property
    def capacity_bytes(self) -> int:
        """What the host may fill."""
        return self.config.logical_bytes

    @property
    def spare_fraction(self) -> Fraction:
        """NAND beyond the capacity, as a share of the capacity."""
        return Fraction(self.config.nand_bytes, self.config.logical_bytes) - 1

    @property
    def rated_host_bytes(self) -> int:
        """Terabytes-written rating, in bytes: DWPD · capacity · days."""
        days = DAYS_PER_YEAR * self.warranty_years
        return int(Fraction(str(self.drive_writes_per_day)) * self.capacity_bytes * days)

    @property
    def nand_budget_bytes(self) -> int:
        """What the NAND takes in its rated life."""
        return int(self.rated_host_bytes * write_amplification(self, self.rated_write_bytes, random=True))

    @property
    def pj_per_byte(self) -> float:
        """Energy of a byte read at full rate: active power over sequential read bandwidth."""
        return self.active_power_w * 1e12 / self.read_bandwidth_bytes_per_s


def write_amplification(drive: DriveConfig, write_bytes: int, *, random: bool) -> Fraction:
    """NAND bytes per host byte of writes of `write_bytes` each; ValueError below 1 byte."""
    if write_bytes < 1:
        raise ValueError(f"write_bytes is {write_bytes}; allowed: from 1")
    unit = drive.config.mapping_unit_bytes
    whole = -(-write_bytes // unit) * unit
    partial = Fraction(whole, write_bytes)
    if not random:  # consecutive writes share their units in the drive's buffer
        return Fraction(1)
    spare = drive.spare_fraction
    return partial * max(Fraction(1), (1 + spare) / (2 * spare))


class DriveWear:
    """Counts what has been written to one drive.

    Attributes:
        drive: its data sheet.
        host_bytes: written by the host.
        nand_bytes: written to the NAND, an exact fraction.

    """

    def __init__(self, drive: DriveConfig) -> None:
        """Start new."""
        self.drive = drive
        self.host_bytes = 0
        self.nand_bytes = Fraction(0)

    def write(self, nbytes: int, write_bytes: int, *, random: bool) -> None:
        """Count `nbytes` that arrive in writes of `write_bytes`; ValueError for less than 0 bytes."""
        if nbytes < 0:
            raise ValueError(f"nbytes is {nbytes}; allowed: from 0")
        self.host_bytes += nbytes
        self.nand_bytes += nbytes * write_amplification(self.drive, write_bytes, random=random)

    @property
    def drive_writes(self) -> float:
        """Host bytes in units of the capacity."""
        return self.host_bytes / self.drive.capacity_bytes

    @property
    def amplification(self) -> float:
        """NAND bytes per host byte so far; 1 before the first write."""
        return float(self.nand_bytes / self.host_bytes) if self.host_bytes else 1.0

    @property
    def life_used(self) -> float:
        """Share of the NAND's rated budget that is spent."""
        return float(self.nand_bytes / self.drive.nand_budget_bytes)

    def projected_life_years(self, elapsed_ps: int) -> float:
        """Years until the budget is spent at the mean rate of `elapsed_ps`; infinite without writes.

        Raises:
            ValueError: no time has elapsed.

        """
        if elapsed_ps < 1:
            raise ValueError(f"elapsed_ps is {elapsed_ps}; allowed: from 1")
        if not self.nand_bytes:
            return float("inf")
        days = Fraction(elapsed_ps, PS_PER_DAY) * self.drive.nand_budget_bytes / self.nand_bytes
        return float(days / DAYS_PER_YEAR)
