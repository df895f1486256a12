"""The timing rules of a channel as data: after which command, before which, where, how many cycles.

Sources: JEDEC JESD79-4 (DDR4), JESD79-5 (DDR5), JESD235 and JESD238 (HBM2, HBM3) for the rules; the PIM
commands' rules follow the AttAcc simulator (HBM3-PIM.cpp, scale-snu/attacc_simulator, MIT licence). The
numbers are those of the device's profile.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import IntEnum

from nearkv_sim.hardware.dram.command import (
    ACTIVATES,
    COLUMN_COMMANDS,
    MACS,
    MOVES,
    PRECHARGES,
    ROW_COMMANDS,
    Command,
)
from nearkv_sim.hardware.dram.config import DramConfig

C = Command


class Scope(IntEnum):
    """Where both commands must act for a rule to hold: how many leading parts of a bank's name they share."""

    CHANNEL = 0
    PSEUDO_CHANNEL = 1
    RANK = 2
    GROUP = 3
    BANK = 4


@dataclass(frozen=True)
class Constraint:
    """`following` comes at least `cycles` after the `window`-th last `previous` in the same `scope`."""

    name: str
    previous: Set[Command]
    following: Set[Command]
    scope: Scope
    cycles: int
    window: int = 1


def timing_table(config: DramConfig, mac_interval: int | None = None) -> tuple[Constraint, ...]:
    """Every rule of a channel; `mac_interval`: cycles between MAC commands of a device that has them."""
    reads, writes, activates = {C.RD}, {C.WR}, {C.ACT}
    closers = PRECHARGES
    write_data = config.t_cwl + config.t_bl
    table = [
        *_bus(config),
        Constraint("t_bl", reads, reads, Scope.PSEUDO_CHANNEL, config.t_bl),
        Constraint("t_bl", writes, writes, Scope.PSEUDO_CHANNEL, config.t_bl),
        Constraint("t_ccd_s", reads, reads, Scope.RANK, config.t_ccd_s),
        Constraint("t_ccd_s", writes, writes, Scope.RANK, config.t_ccd_s),
        Constraint("t_ccd_l", reads, reads, Scope.GROUP, config.t_ccd_l),
        Constraint("t_ccd_l_write", writes, writes, Scope.GROUP, config.t_ccd_l_write),
        Constraint("t_rtw", reads, writes, Scope.PSEUDO_CHANNEL, read_to_write_cycles(config)),
        Constraint("t_wtr_s", writes, reads, Scope.RANK, write_data + config.t_wtr_s),
        Constraint("t_wtr_l", writes, reads, Scope.GROUP, write_data + config.t_wtr_l),
        Constraint("t_rcd_read", ACTIVATES, reads | MACS, Scope.BANK, config.t_rcd_read),
        Constraint("t_rcd_write", activates, writes, Scope.BANK, config.t_rcd_write),
        Constraint("t_ras", ACTIVATES, closers, Scope.BANK, config.t_ras),
        Constraint("t_rc", ACTIVATES, ACTIVATES | {C.REF}, Scope.BANK, config.t_rc),
        Constraint("t_rp", closers, ACTIVATES | {C.REF}, Scope.BANK, config.t_rp),
        Constraint("t_rtp", reads | MACS, closers, Scope.BANK, config.t_rtp),
        Constraint("t_wr", writes, closers, Scope.BANK, write_data + config.t_wr),
        Constraint("t_rrd_s", activates, activates, Scope.RANK, config.t_rrd_s),
        Constraint("t_rrd_l", activates, activates, Scope.GROUP, config.t_rrd_l),
        Constraint("t_faw", activates, activates, Scope.RANK, config.t_faw, window=4),
        Constraint("t_rfc", {C.REF}, ACTIVATES | {C.REF}, Scope.BANK, config.t_rfc),
    ]
    if mac_interval is not None:
        transfers = MOVES | reads | writes
        table += [
            Constraint("mac_interval", MACS, MACS, Scope.CHANNEL, mac_interval),
            Constraint("t_ccd_s of MAC", {C.MAC_PB}, {C.MAC_PB}, Scope.RANK, config.t_ccd_s),
            Constraint("t_ccd_l of MAC", {C.MAC_PB}, {C.MAC_PB}, Scope.GROUP, config.t_ccd_l),
            Constraint("t_bl of moves", MOVES, transfers, Scope.PSEUDO_CHANNEL, config.t_bl),
            Constraint("t_ccd_s of moves", MOVES, transfers, Scope.RANK, config.t_ccd_s),
            Constraint("t_ccd_l of moves", MOVES, transfers, Scope.GROUP, config.t_ccd_l),
        ]
    return tuple(table)


def read_to_write_cycles(config: DramConfig) -> int:
    """RD to WR: the read's data have left the bus, two cycles of preamble before the write's."""
    return config.t_cl + config.t_bl + 2 - config.t_cwl


def _bus(config: DramConfig) -> list[Constraint]:
    """One command at a time on each command bus; ACT and, on DDR5, RD and WR take two cycles."""
    accesses = {C.RD, C.WR}
    buses = [ROW_COMMANDS, COLUMN_COMMANDS] if config.separate_buses else [frozenset(Command)]
    rules = []
    for bus in buses:
        rules += [
            Constraint("command bus", bus, bus, Scope.CHANNEL, 1),
            Constraint("command bus after ACT", ACTIVATES & bus, bus, Scope.CHANNEL, config.activate_cycles),
            Constraint("command bus after access", accesses & bus, bus, Scope.CHANNEL, config.column_cycles),
        ]
    return rules
