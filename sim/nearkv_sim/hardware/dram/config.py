"""What one DRAM device is: organisation, timings in clock cycles, energies. Values come from profiles."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.profile import Profile, named_profile

KIND = "dram"
MOST_CYCLES = 10**6  # of a timing; a longer one is a mistaken unit
MOST = 2**30  # of everything else
_ZERO_ALLOWED = ("group_path_pj_per_byte", "channel_path_pj_per_byte")
_FRACTIONAL = (
    "activate_pj",
    "array_pj_per_byte",
    "group_path_pj_per_byte",
    "channel_path_pj_per_byte",
    "interface_pj_per_byte",
)


@dataclass(frozen=True, kw_only=True)
class DramConfig:
    """Organisation and timings; every time `t_…` is in clock cycles. ValueError for what no device can be.

    A channel has `pseudo_channels` that share its command buses; each holds `ranks` × `groups` × `banks`.

    Attributes:
        data_rate_mtps: megatransfers per second of one data pin.
        transfers_per_clock: of the clock that the timings count: 2 for DDR, 4 for HBM3's command clock.
        channels: of the device or stack.
        access_bytes: moved by one column command.
        columns: column commands per row.
        t_rcd_read, t_rcd_write: ACT to RD or PIM command, ACT to WR.
        t_ccd_s, t_ccd_l, t_ccd_l_write: column to column, other group, same group, same group of writes.
        t_bl: data bus time of one access.
        t_rtp, t_wr, t_wtr_s, t_wtr_l: read to precharge, write recovery, end of write data to read.
        t_faw: window in which at most four ACT go to one rank.
        t_refi, t_rfc: mean interval of refreshes, and time one takes.
        activate_cycles, column_cycles: command bus cycles of ACT and of RD, WR.
        separate_buses: row and column commands have a bus each (HBM).
        activate_pj: one bank's ACT and PRE.
        array_pj_per_byte: cells to the bank's edge.
        group_path_pj_per_byte, channel_path_pj_per_byte: bank to bank-group edge, and on to the interface.
        interface_pj_per_byte: pins or interposer.

    """

    data_rate_mtps: int
    transfers_per_clock: int
    channels: int
    pseudo_channels: int
    ranks: int
    groups: int
    banks: int
    rows: int
    columns: int
    access_bytes: int
    t_cl: int
    t_cwl: int
    t_bl: int
    t_rcd_read: int
    t_rcd_write: int
    t_rp: int
    t_ras: int
    t_rc: int
    t_wr: int
    t_rtp: int
    t_ccd_s: int
    t_ccd_l: int
    t_ccd_l_write: int
    t_rrd_s: int
    t_rrd_l: int
    t_faw: int
    t_wtr_s: int
    t_wtr_l: int
    t_refi: int
    t_rfc: int
    activate_cycles: int
    column_cycles: int
    separate_buses: bool
    activate_pj: float
    array_pj_per_byte: float
    group_path_pj_per_byte: float
    channel_path_pj_per_byte: float
    interface_pj_per_byte: float

    def __post_init__(self) -> None:
        """Check types, ranges and the sums that the timings must keep."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "separate_buses":
                if not isinstance(value, bool):
                    raise ValueError(f"separate_buses is {value!r}; allowed: true, false")
            elif field.name in _FRACTIONAL:
                require_energy(field.name, value, zero=field.name in _ZERO_ALLOWED)
            else:
                require_integer(field.name, value, 1, _limit(field.name))
        if self.t_rc < self.t_ras:
            raise ValueError(f"t_rc is {self.t_rc}; allowed: from t_ras, {self.t_ras}")
        if self.t_refi <= self.t_rfc:
            raise ValueError(f"t_refi is {self.t_refi}; allowed: above t_rfc, {self.t_rfc}")

    @property
    def clock_ps(self) -> Fraction:
        """Exact clock period in ps."""
        return Fraction(10**6 * self.transfers_per_clock, self.data_rate_mtps)

    @property
    def banks_per_channel(self) -> int:
        """Banks behind one channel's command bus."""
        return self.pseudo_channels * self.ranks * self.groups * self.banks

    @property
    def row_bytes(self) -> int:
        """One bank's row."""
        return self.columns * self.access_bytes

    @property
    def capacity_bytes(self) -> int:
        """Whole device or stack."""
        return self.channels * self.banks_per_channel * self.rows * self.row_bytes

    @property
    def peak_bytes_per_s(self) -> Fraction:
        """Interface bound: every pseudo-channel moves one access per max(t_bl, t_ccd_s) cycles."""
        interval_ps = max(self.t_bl, self.t_ccd_s) * self.clock_ps
        return self.channels * self.pseudo_channels * self.access_bytes * 10**12 / interval_ps

    def to_ps(self, cycles: int) -> int:
        """Cycles as integer picoseconds, rounded up."""
        exact = cycles * self.clock_ps
        return -(-exact.numerator // exact.denominator)


def _limit(name: str) -> int:
    if name in ("activate_cycles", "column_cycles"):
        return 2
    return MOST_CYCLES if name.startswith("t_") else MOST


def require_energy(name: str, value: Any, *, zero: bool) -> None:
    """ValueError unless `value` is a finite number of pJ above 0, or from 0 if `zero`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise ValueError(f"{name} is {value!r}; allowed: a finite number {'from' if zero else 'above'} 0")


def dram_profile(name: str) -> Profile[DramConfig]:
    """The shipped DRAM profile `name`; ValueError lists those there are."""
    return named_profile(KIND, name, DramConfig)
