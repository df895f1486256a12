"""Compares the planes that were streamed with the CRCs of their headers."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.crc32c import CRC_BITS, advanced, linear
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.header_check import PLANE_CRCS


class PlaneCheck(wiring.Component):
    """Judges each block by the CRCs of its planes, and joins them to that of the job.

    Formula: with P the bytes of a plane and F the CRC register's step of one zero bit, the CRC of the planes
    so far and one more is F^(8·P)·crc ⊕ crc(plane); initial value and final XOR cancel out.
    Errors: KEY_CRC with the address of the block's first plane that differs and the block's tokens, known
    with its last plane: a failed read of the block is known by then.
    Timing: a plane a cycle; a plane whose header has not been judged waits.
    Numerics: exact.
    Reset: all.

    Args:
        design: head dimensions, tokens of a block.

    Members:
        block_count, head_dim: of the job, stable.
        i_expected: CRCs by header, one block after the other.
        i: CRCs of the planes as streamed.
        o_crc: of all planes so far.
        all_good: every block of the job has been judged, and is as its header says.
        fault: of the block at hand, for a cycle, otherwise code NONE.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        super().__init__(
            {
                "block_count": In(32),
                "head_dim": In(32),
                "i_expected": In(stream.Signature(PLANE_CRCS)),
                "i": In(stream.Signature(CRC_BITS)),
                "o_crc": Out(CRC_BITS),
                "all_good": Out(1),
                "fault": Out(Fault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        design, expected = self.design, self.i_expected.payload
        is_low, high_differs = Signal(), Signal()
        differs, ends, takes = Signal(), Signal(), Signal()
        plane_bytes, joined = Signal(range(design.layout(design.head_dims[-1]).plane_bytes + 1)), Signal(32)
        for head_dim in design.head_dims:
            nbytes = design.layout(head_dim).plane_bytes
            with m.If(self.head_dim == head_dim):
                columns = [advanced(1 << bit, nbytes) for bit in range(CRC_BITS)]
                m.d.comb += [plane_bytes.eq(nbytes), joined.eq(linear(columns, self.o_crc))]
        m.d.comb += [
            takes.eq(self.i.valid & self.i_expected.valid),
            self.i.ready.eq(self.i_expected.valid),
            ends.eq(is_low | (expected.key_format == KeyFormat.INT4)),
            self.i_expected.ready.eq(takes & ends),
            differs.eq(self.i.payload != Mux(is_low, expected.low, expected.high)),
            self.fault.code.eq(
                Mux(takes & ends & (differs | high_differs), ErrorCode.KEY_CRC, ErrorCode.NONE)
            ),
            self.fault.address.eq(expected.key_address + Mux(is_low & ~high_differs, plane_bytes, 0)),
            self.fault.token.eq(expected.first_token),
            self.fault.tokens.eq(tokens_of_block(self.fault, design.block_tokens)),
        ]
        blocks = Signal(32)
        m.d.comb += self.all_good.eq(blocks == self.block_count)
        with m.If(takes):
            m.d.sync += [
                self.o_crc.eq(joined ^ self.i.payload),
                is_low.eq(~ends),
                high_differs.eq(differs & ~ends),
                blocks.eq(blocks + ends),
            ]
        return m
