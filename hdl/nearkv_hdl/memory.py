"""The one on-chip memory of this project: a write port, a read port, nothing a synthesiser gets wrong."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

# Synthesis attribute by style; `ram_style` is read by Vivado and by Yosys.
_STYLES = {
    "auto": {},
    "block": {"ram_style": "block"},
    "ultra": {"ram_style": "ultra"},
    "distributed": {"ram_style": "distributed"},
}


# Yosys then adds no logic behind the RAM block that would give a row's old value where the block does not.
_NO_COLLISIONS = {"no_rw_check": 1}


class SyncMemory(wiring.Component):
    """Simple dual-port memory: one synchronous write port, one synchronous read port, one clock.

    Formula: a read returns what the row held before this cycle's write. A row consists of `parts` equal
    parts that are written one by one. Rows are 0 after power-on, whatever they hold after a reset.
    Timing: read latency `latency` in cycles with `read_enable`, interval 1, one write per cycle. Without
    `read_enable` every read register keeps its value.
    Numerics: none.

    Ports are never transparent: some versions of Vivado miscompile those. A user that needs the new value
    forwards it, or does not read a row in the cycle in which it is written.

    Args:
        width: bits of a row.
        depth: rows, from 2.
        parts: parts a row is written in, a divisor of width.
        latency: 1, or 2 for a second register at the output (memories of many blocks need it).
        style: "auto", "block" (block RAM), "ultra" (UltraRAM) or "distributed" (LUTs).
        keeps_old: without it, what a read returns of a row that is written in the same cycle is undefined on
            chip, for a user that never uses such a read; simulations return the old value.

    Members:
        write_row, write_data, write_enable: one enable bit per part.
        read_row, read_enable: row to read.
        read_data: that row, `latency` enabled cycles later.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self,
        width: int,
        depth: int,
        *,
        parts: int = 1,
        latency: int = 1,
        style: str = "auto",
        keeps_old: bool = True,
    ) -> None:
        if width < 1:
            raise ValueError(f"width is {width}; allowed: from 1")
        if depth < 2:
            raise ValueError(f"depth is {depth}; allowed: from 2")
        if parts < 1 or width % parts:
            raise ValueError(f"parts is {parts} with width {width}; allowed: a divisor of the width")
        if latency not in (1, 2):
            raise ValueError(f"latency is {latency}; allowed: 1, 2")
        if style not in _STYLES:
            raise ValueError(f"style is {style!r}; allowed: {', '.join(_STYLES)}")
        self.width = width
        self.depth = depth
        self.parts = parts
        self._latency = latency
        self.style = style
        self.keeps_old = keeps_old
        super().__init__(
            {
                "write_row": In(range(depth)),
                "write_data": In(width),
                "write_enable": In(parts),
                "read_row": In(range(depth)),
                "read_enable": In(1),
                "read_data": Out(width),
            }
        )

    @property
    def latency(self) -> int:
        """Enabled cycles from `read_row` to `read_data`."""
        return self._latency

    @property
    def interval(self) -> int:
        """Cycles between two reads, and between two writes."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(
            shape=self.width,
            depth=self.depth,
            init=[],
            attrs=_STYLES[self.style] | ({} if self.keeps_old else _NO_COLLISIONS),
        )
        write = rows.write_port(granularity=self.width // self.parts)
        read = rows.read_port()
        m.d.comb += [
            write.addr.eq(self.write_row),
            write.data.eq(self.write_data),
            write.en.eq(self.write_enable),
            read.addr.eq(self.read_row),
            read.en.eq(self.read_enable),
        ]
        if self.latency == 1:
            m.d.comb += self.read_data.eq(read.data)
        else:
            output = Signal(self.width, reset_less=True)
            with m.If(self.read_enable):
                m.d.sync += output.eq(read.data)
            m.d.comb += self.read_data.eq(output)
        return m
