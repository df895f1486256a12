"""Commands on a DRAM channel, where they act, and a recorded command."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from typing import NamedTuple

from nearkv_sim.hardware.dram.config import DramConfig


class Reach(Enum):
    """Which banks of the channel one command acts on."""

    BANK = "the addressed bank"
    PSEUDO_CHANNEL = "every bank of the addressed pseudo-channel"
    CHANNEL = "every bank of the channel"
    SAME_BANK = "the bank of that number in every group, rank and pseudo-channel"
    TWIN_BANK = "the addressed bank in every pseudo-channel"


class Command(Enum):
    """A command: its name and its reach. `…_AB`, `…_SB`, `…_PB`: PIM on all, same and single banks."""

    ACT = ("ACT", Reach.BANK)
    PRE = ("PRE", Reach.BANK)
    RD = ("RD", Reach.BANK)
    WR = ("WR", Reach.BANK)
    PREA = ("PREA", Reach.CHANNEL)
    REF = ("REF", Reach.PSEUDO_CHANNEL)
    ACT_AB = ("ACT_AB", Reach.CHANNEL)
    MAC_AB = ("MAC_AB", Reach.CHANNEL)
    ACT_SB = ("ACT_SB", Reach.SAME_BANK)
    PRE_SB = ("PRE_SB", Reach.SAME_BANK)
    MAC_SB = ("MAC_SB", Reach.SAME_BANK)
    ACT_PB = ("ACT_PB", Reach.TWIN_BANK)
    PRE_PB = ("PRE_PB", Reach.TWIN_BANK)
    MAC_PB = ("MAC_PB", Reach.TWIN_BANK)
    WR_GB = ("WR_GB", Reach.BANK)  # vector from the interface to a unit's buffer
    MV_GB = ("MV_GB", Reach.BANK)  # weights from the softmax buffer to a unit's buffer
    MV_SB = ("MV_SB", Reach.BANK)  # a unit's results to the softmax buffer
    SOFTMAX = ("SOFTMAX", Reach.BANK)  # start the softmax unit of the buffer die

    def __init__(self, label: str, reach: Reach) -> None:
        """Give the member its two parts names."""
        self.label = label
        self.reach = reach


ACTIVATES = frozenset({Command.ACT, Command.ACT_AB, Command.ACT_SB, Command.ACT_PB})
PRECHARGES = frozenset({Command.PRE, Command.PREA, Command.PRE_SB, Command.PRE_PB})
MACS = frozenset({Command.MAC_AB, Command.MAC_SB, Command.MAC_PB})
MOVES = frozenset({Command.WR_GB, Command.MV_GB, Command.MV_SB, Command.SOFTMAX})
ROW_COMMANDS = ACTIVATES | PRECHARGES | {Command.REF}
COLUMN_COMMANDS = frozenset(Command) - ROW_COMMANDS
NEEDS_ROW = MACS | {Command.RD, Command.WR}


class Address(NamedTuple):
    """Place in one channel. Row and column matter only to commands that use them."""

    pseudo_channel: int = 0
    rank: int = 0
    group: int = 0
    bank: int = 0
    row: int = 0
    column: int = 0


@dataclass(frozen=True)
class Issue:
    """One command as it appears on the channel in `cycle`."""

    cycle: int
    command: Command
    address: Address

    def __str__(self) -> str:
        """Cycle, command and place, for messages."""
        return f"cycle {self.cycle} {self.command.label} {tuple(self.address)}"


def banks_reached(config: DramConfig, command: Command, address: Address) -> list[tuple[int, int, int, int]]:
    """(pseudo-channel, rank, group, bank) of every bank that the command acts on."""
    reach = command.reach
    whole = reach in (Reach.CHANNEL, Reach.SAME_BANK, Reach.TWIN_BANK)
    channel = range(config.pseudo_channels) if whole else (address.pseudo_channel,)
    inner = reach in (Reach.CHANNEL, Reach.SAME_BANK, Reach.PSEUDO_CHANNEL)
    ranks = range(config.ranks) if inner else (address.rank,)
    groups = range(config.groups) if inner else (address.group,)
    every_bank = reach in (Reach.CHANNEL, Reach.PSEUDO_CHANNEL)
    banks = range(config.banks) if every_bank else (address.bank,)
    return list(product(channel, ranks, groups, banks))
