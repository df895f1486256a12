"""CRC32C over a stream, one bus beat per cycle."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC32_ISCSI
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import check_bus_bytes
from nearkv_hdl.stream.pipeline import PipelineControl

CRC_BITS = CRC32_ISCSI.crc_width
ALL_ONES = (1 << CRC_BITS) - 1  # initial value and final XOR
_TOP = 1 << CRC_BITS - 1
# Reflected: the register shifts towards bit 0.
_POLYNOMIAL = int(f"{CRC32_ISCSI.polynomial:0{CRC_BITS}b}"[::-1], 2)
_GROUP_LANES = 8  # lanes that are summed in one rank


def crc_beat_layout(bus_bytes: int):
    """A beat of a frame: all its lanes count, in the last one lanes 0 to bytes − 1."""
    return data.StructLayout({"data": 8 * bus_bytes, "bytes": range(bus_bytes + 1), "last": 1})


def advanced(register: int, nbytes: int) -> int:
    """The register after `nbytes` zero bytes, or before them if negative."""
    for _ in range(8 * nbytes):
        register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
    for _ in range(-8 * nbytes):
        # A step that subtracted the polynomial left its top bit set, since that of the polynomial is.
        register = ((register ^ _POLYNOMIAL) << 1 | 1) if register & _TOP else register << 1
    return register


def total(terms: list):
    """Their sum over GF(2), as a balanced tree."""
    while len(terms) > 1:
        terms = [first ^ second for first, second in zip(terms[0::2], terms[1::2], strict=True)]
    return terms[0]


def linear(columns: list[int], value):
    """Σ value[i]·columns[i] over GF(2), for a power of two of columns.

    Written as a sum of words: C++ compilers choke on a concatenation of CRC_BITS parities.
    """
    return total([Mux(value[i], Const(column, CRC_BITS), 0) for i, column in enumerate(columns)])


class Crc32c(wiring.Component):
    """CRC32C of every frame of a stream.

    Formula: the register advances by A = F^(8·bus_bytes), F being the step of one bit, and takes in the beat,
    which is linear in its bits: s' = A·s ⊕ G·beat, from all ones. The last beat is filled up with zero
    bytes; behind the loop F^(−8·2^i) takes them back for every bit i of their number. The CRC is the inverse.
    A frame of no bytes is one last beat of 0; its CRC is 0.
    Timing: latency 5 + log2(bus_bytes) from the last beat to `o`; interval 1, frames included. A stalled
    `o` stops `i` when the pipeline behind the loop is full of results.
    Numerics: reflected polynomial 0x82F63B78, initial value and final XOR all ones (RFC 3720, section 12.1;
    `amaranth.lib.crc.catalog.CRC32_ISCSI`); the CRC of "123456789" is 0xE3069283. Exact.
    Cuts: inputs to `o`; `i.ready` follows `o.ready`.
    Reset: valid bits, the register.

    Args:
        bus_bytes: bytes of a beat, a power of two from 4 to 128.

    Members:
        i: beats, lane 0 first. `bytes` counts in a last beat alone.
        o: one CRC per frame.

    Raises ValueError for another bus_bytes.

    """

    def __init__(self, bus_bytes: int) -> None:
        check_bus_bytes(bus_bytes)
        self.bus_bytes = bus_bytes
        self._pad_bits = bus_bytes.bit_length()  # of a number from 0 to bus_bytes
        self._front = PipelineControl(3)
        self._back = PipelineControl(1 + self._pad_bits)
        super().__init__(
            {
                "i": In(stream.Signature(crc_beat_layout(bus_bytes))),
                "o": Out(stream.Signature(CRC_BITS)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a last beat to its CRC: mask, groups, sum, register, a rank per bit of the padding."""
        return self._front.latency + self._back.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.front = front = self._front
        m.submodules.back = back = self._back
        beat, bus_bytes = self.i.payload, self.bus_bytes

        # Three ranks before the loop: lanes that do not count to 0, sums of groups, their sum.
        last = [Signal(name=f"last{rank}", reset_less=True) for rank in range(3)]
        pad = [Signal(self._pad_bits, name=f"pad{rank}", reset_less=True) for rank in range(3)]
        masked = [Signal(8, name=f"masked{lane}", reset_less=True) for lane in range(bus_bytes)]
        group_lanes = min(_GROUP_LANES, bus_bytes)
        groups = [
            Signal(CRC_BITS, name=f"group{lane}", reset_less=True)
            for lane in range(0, bus_bytes, group_lanes)
        ]
        beat_sum = Signal(CRC_BITS, reset_less=True)
        with m.If(front.enable):
            for lane, byte in enumerate(masked):
                counts = ~beat.last | (beat.bytes > lane)
                m.d.sync += byte.eq(Mux(counts, beat.data[8 * lane : 8 * (lane + 1)], 0))
            m.d.sync += [
                last[0].eq(beat.last),
                pad[0].eq(bus_bytes - beat.bytes),
                *(last[rank].eq(last[rank - 1]) for rank in (1, 2)),
                *(pad[rank].eq(pad[rank - 1]) for rank in (1, 2)),
            ]
            for index, group in enumerate(groups):
                lanes = range(index * group_lanes, (index + 1) * group_lanes)
                m.d.sync += group.eq(
                    total(
                        [
                            linear([advanced(1 << bit, bus_bytes - lane) for bit in range(8)], masked[lane])
                            for lane in lanes
                        ]
                    )
                )
            m.d.sync += beat_sum.eq(total(groups))
        m.d.comb += [
            front.i_valid.eq(self.i.valid),
            self.i.ready.eq(front.i_ready),
            back.i_valid.eq(front.o_valid & last[2]),
            front.o_ready.eq(~last[2] | back.i_ready),
        ]

        # The loop.
        register = Signal(CRC_BITS, init=ALL_ONES)
        following = Signal(CRC_BITS)
        whole_beat = [advanced(1 << bit, bus_bytes) for bit in range(CRC_BITS)]
        m.d.comb += following.eq(linear(whole_beat, register) ^ beat_sum)
        with m.If(front.o_valid & front.o_ready):
            m.d.sync += register.eq(Mux(last[2], ALL_ONES, following))

        # Behind it: zero bytes are taken back.
        crc = Signal(CRC_BITS, reset_less=True)
        left = Signal(self._pad_bits, reset_less=True)
        with m.If(back.enable):
            m.d.sync += [crc.eq(following), left.eq(pad[2])]
        for power in range(self._pad_bits):
            columns = [advanced(1 << bit, -(1 << power)) for bit in range(CRC_BITS)]
            shorter = Signal(CRC_BITS, name=f"crc{power}", reset_less=True)
            still_left = Signal(self._pad_bits, name=f"left{power}", reset_less=True)
            with m.If(back.enable):
                m.d.sync += [shorter.eq(Mux(left[power], linear(columns, crc), crc)), still_left.eq(left)]
            crc, left = shorter, still_left
        m.d.comb += [
            self.o.payload.eq(~crc),
            self.o.valid.eq(back.o_valid),
            back.o_ready.eq(self.o.ready),
        ]
        return m
