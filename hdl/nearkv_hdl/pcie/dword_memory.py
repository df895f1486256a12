"""On-chip memory that is written and read 16 dwords at a time, from any dword on."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.pcie.formats import BEAT_DWORDS
from nearkv_hdl.spec.formats import is_power_of_two

DWORD_BITS = 32
_LANE_BITS = (BEAT_DWORDS - 1).bit_length()


def rotated_left(m: Module, words: list, amount, name: str) -> list:
    """Words as a list whose entry l is `words[(l + amount) % 16]`, a multiplexer level per bit of amount."""
    for bit in range(_LANE_BITS):
        level = [Signal(DWORD_BITS, name=f"{name}{bit}_{lane}") for lane in range(BEAT_DWORDS)]
        for lane, word in enumerate(level):
            ahead = words[(lane + (1 << bit)) % BEAT_DWORDS]
            m.d.comb += word.eq(Mux(amount[bit], ahead, words[lane]))
        words = level
    return words


class DwordMemory(wiring.Component):
    """A bank per dword lane, so that a beat goes to and comes from any alignment in one cycle.

    Formula: dword l of a beat is at address + l, modulo 16 · rows. A read returns what was there before this
    cycle's write.
    Timing: read latency 1 in cycles with `read_enable`, interval 1, a write per cycle.
    Numerics: none.
    Cuts: none: four multiplexer levels before the write ports, four after the read ports. An address whose
    lowest four bits are constant 0 costs none.

    Args:
        rows: beats it holds, a power of two from 2.

    Members:
        write_address, write_data, write_enable: first dword, 16 dwords, one enable bit per dword.
        read_address, read_enable: first dword.
        read_data: 16 dwords.

    Raises ValueError for another number of rows.

    """

    def __init__(self, rows: int) -> None:
        if not (is_power_of_two(rows) and rows >= 2):
            raise ValueError(f"rows is {rows}; allowed: a power of two from 2")
        self.rows = rows
        self.address_bits = (rows * BEAT_DWORDS - 1).bit_length()
        super().__init__(
            {
                "write_address": In(self.address_bits),
                "write_data": In(DWORD_BITS * BEAT_DWORDS),
                "write_enable": In(BEAT_DWORDS),
                "read_address": In(self.address_bits),
                "read_enable": In(1),
                "read_data": Out(DWORD_BITS * BEAT_DWORDS),
            }
        )

    @property
    def latency(self) -> int:
        """Enabled cycles from `read_address` to `read_data`."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two reads, and between two writes."""
        return 1

    def elaborate(self, platform):
        m = Module()
        write_turn, read_turn = self.write_address[:_LANE_BITS], self.read_address[:_LANE_BITS]
        write_row, read_row = self.write_address[_LANE_BITS:], self.read_address[_LANE_BITS:]
        back = Signal(_LANE_BITS)
        m.d.comb += back.eq(-write_turn)
        offered = [self.write_data.word_select(lane, DWORD_BITS) for lane in range(BEAT_DWORDS)]
        turned = rotated_left(m, offered, back, "offered")
        enables = Cat(self.write_enable, self.write_enable).bit_select(back, BEAT_DWORDS)
        read = []
        for lane in range(BEAT_DWORDS):
            bank = SyncMemory(DWORD_BITS, self.rows, keeps_old=False)
            m.submodules[f"bank{lane}"] = bank
            # Lanes below the first dword's belong to the next row.
            m.d.comb += [
                bank.write_row.eq(write_row + (lane < write_turn)),
                bank.write_data.eq(turned[lane]),
                bank.write_enable.eq(enables[lane]),
                bank.read_row.eq(read_row + (lane < read_turn)),
                bank.read_enable.eq(self.read_enable),
            ]
            read.append(bank.read_data)
        turn = Signal(_LANE_BITS)
        with m.If(self.read_enable):
            m.d.sync += turn.eq(read_turn)
        m.d.comb += self.read_data.eq(Cat(rotated_left(m, read, turn, "read")))
        return m
