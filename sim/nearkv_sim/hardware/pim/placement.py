"""Where the n-th MAC command of a matrix finds its operands, at each level.

Bank: all banks at once; columns, then rows. Bank group: the same bank of all groups; columns, then banks,
then rows. Buffer die: groups and ranks in turn, then banks, then columns, then rows (AttAcc's mapping).
"""

from __future__ import annotations

from nearkv_sim.hardware.dram.command import Address
from nearkv_sim.hardware.pim.config import BANK, BUFFER_DIE, PimConfig

_ROW_BITS = 16  # row number within a matrix; the matrix's number stands above it


class Placement:
    """Slots are banks that open together; `index` counts a matrix's MAC commands.

    Members:
        slots: of the channel.
        slots_per_row: slots whose rows one stretch of MACs goes round.
    """

    def __init__(self, config: PimConfig) -> None:
        dram = config.dram_config
        self._columns, self._groups = dram.columns, dram.groups
        self._paths = dram.ranks * dram.groups
        self._buffer = config.level == BUFFER_DIE
        if self._buffer:
            self.slots = self.slots_per_row = self._paths * dram.banks
            self._row_macs = self.slots * self._columns
        else:
            self.slots = 1 if config.level == BANK else dram.banks
            if config.level == BANK:
                self._columns *= config.banks_per_unit  # a unit takes the same row of its banks in turn
            self.slots_per_row = 1
            self._row_macs = self._columns

    def slot(self, index: int) -> int:
        """Slot of the MAC."""
        if self._buffer:
            return index % self.slots
        return index // self._columns % self.slots

    def row(self, index: int) -> int:
        """Row, within the matrix; slots that are used one after the other have rows of their own."""
        return index // self._row_macs

    def left_in_row(self, index: int) -> int:
        """MACs from this one on that need no other row."""
        return self._row_macs - index % self._row_macs

    def data_path(self, index: int) -> int:
        """Rank and group whose data path the MAC uses; −1 where every unit has its own."""
        return index % self._paths if self._buffer else -1

    def address(self, index: int, matrix: int) -> Address:
        """As a command carries it; the matrix's number makes rows of different matrices differ."""
        row = matrix << _ROW_BITS | self.row(index)
        slot = self.slot(index)
        if not self._buffer:
            return Address(0, 0, 0, slot, row, index % self._columns)
        path, bank = slot % self._paths, slot // self._paths
        column = index // self.slots % self._columns
        return Address(0, path // self._groups, path % self._groups, bank, row, column)
