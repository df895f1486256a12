"""A wide memory of Lattice ECP5 RAM blocks with their output registers."""

from __future__ import annotations

from amaranth.hdl import ClockSignal, Const, Instance, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.memory import SyncMemory

# PDPW16KD as 512 words of 36 bits; bits 13 to 5 of the read address count words (FPGA-TN-02204).
BLOCK_ROWS = 512
BLOCK_BITS = 36
_HALF_BITS = BLOCK_BITS // 2
_WRITE_ADDRESS_BITS = 9
_READ_ADDRESS_BITS = 14
_LATENCY = 2  # the memory itself, its output register


class Pdpw16kd(wiring.Component):
    """Rows of any width in blocks of 512 × 36 bit: one write and one read port, registered in the block.

    Formula: as SyncMemory with latency 2; a row that is read in the cycle of its write is undefined.
    Timing: read latency 2, interval 1, one write per cycle.
    Numerics: none.

    Yosys puts no registers into RAM blocks, and a block without them takes 5.6 ns from clock to output at
    speed grade 6 (nextpnr's database). With `primitive` PDPW16KD is instantiated with REGMODE = OUTREG;
    without, a SyncMemory of the same behaviour stands for it. Two assumptions, not checked on the block
    itself: by its description in FPGA-TN-02204 the output register is one more rank under CLKR, enabled by
    OCER; and the halves of a word leave exchanged, bit 0 at DO18 and bit 18 at DO0. So Lattice Diamond
    connects the blocks that it generates, and nextpnr takes them apart (pack_ebrs, beside Yosys's map of a
    36-bit DP16KD).

    Args:
        width: bits of a row, from 1.
        depth: rows, 2 to 512.
        primitive: instantiate the blocks.

    Members:
        write_row, write_data, write_enable: row to write.
        read_row, read_enable: row to read; without enable both registers keep their value.
        read_data: that row, `latency` cycles later.

    Raises ValueError for an argument outside its range.

    """

    def __init__(self, width: int, depth: int, *, primitive: bool = False) -> None:
        if not 2 <= depth <= BLOCK_ROWS:
            raise ValueError(f"depth is {depth}; allowed: 2 to {BLOCK_ROWS}")
        self.width = width
        self.depth = depth
        self.primitive = primitive
        super().__init__(
            {
                "write_row": In(range(depth)),
                "write_data": In(width),
                "write_enable": In(1),
                "read_row": In(range(depth)),
                "read_enable": In(1),
                "read_data": Out(width),
            }
        )

    @property
    def latency(self) -> int:
        """Enabled cycles from `read_row` to `read_data`."""
        return _LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two reads, and between two writes."""
        return 1

    def elaborate(self, platform):
        m = Module()
        if not self.primitive:
            m.submodules.rows = rows = SyncMemory(self.width, self.depth, latency=_LATENCY, keeps_old=False)
            wiring.connect(m, wiring.flipped(self), rows)
            return m
        write_address, read_address = Signal(_WRITE_ADDRESS_BITS), Signal(_READ_ADDRESS_BITS)
        m.d.comb += [
            write_address.eq(self.write_row),
            read_address.eq(self.read_row << (_READ_ADDRESS_BITS - _WRITE_ADDRESS_BITS)),
        ]
        for index, start in enumerate(range(0, self.width, BLOCK_BITS)):
            part = slice(start, min(start + BLOCK_BITS, self.width))
            data_in, data_out = Signal(BLOCK_BITS, name=f"in{index}"), Signal(BLOCK_BITS, name=f"out{index}")
            m.d.comb += [data_in.eq(self.write_data[part]), self.read_data[part].eq(data_out)]
            # Both widths are said: not every tool takes 36 for one that is left out.
            ports: dict[str, object] = {"p_DATA_WIDTH_W": BLOCK_BITS, "p_DATA_WIDTH_R": BLOCK_BITS}
            ports |= {"p_REGMODE": "OUTREG", "i_RST": Const(0)}
            ports |= {"i_CLKW": ClockSignal(), "i_CEW": self.write_enable}
            ports |= {"i_CLKR": ClockSignal(), "i_CER": self.read_enable, "i_OCER": self.read_enable}
            ports |= {f"i_BE{byte}": Const(1) for byte in range(4)}
            ports |= {f"i_CS{port}{bit}": Const(0) for port in "WR" for bit in range(3)}
            ports |= {f"i_ADW{bit}": write_address[bit] for bit in range(_WRITE_ADDRESS_BITS)}
            ports |= {f"i_ADR{bit}": read_address[bit] for bit in range(_READ_ADDRESS_BITS)}
            ports |= {f"i_DI{bit}": data_in[bit] for bit in range(BLOCK_BITS)}
            ports |= {f"o_DO{bit}": data_out[(bit + _HALF_BITS) % BLOCK_BITS] for bit in range(BLOCK_BITS)}
            m.submodules[f"block{index}"] = Instance("PDPW16KD", **ports)
        return m
