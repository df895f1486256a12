"""Check of a job's descriptors, in the order of ErrorCode."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.bus.window import WindowCheck
from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS, SHIFT, TOKEN_INDEX
from nearkv_hdl.spec.layout import (
    BLOCK_ALIGN_BYTES,
    MAX_QUERY_GROUP,
    SHIFT_BITS,
    KeyFormat,
    query_code_bytes,
)
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.stream.pipeline import PipelineControl

ALIGN_BYTES = 64  # descriptors, query codes and results, see the register table
HEADS_BITS = MAX_QUERY_GROUP.bit_length()
_HEAD_DIM_BITS = 9  # up to 256
_LENGTH_BITS = 32
# As spec.layout.BlockDescriptor packs it.
DESCRIPTOR = data.StructLayout(
    {
        "key_address": 64,
        "first_token": TOKEN_INDEX.width,
        "head_dim": 16,
        "key_format": 8,
        "heads": 8,
        "query_address": 64,
        "bias": data.ArrayLayout(shape_of(BIAS), MAX_QUERY_GROUP),
        "shift": data.ArrayLayout(SHIFT_BITS, MAX_QUERY_GROUP),
        "generation": 32,
    }
)
CHECKED = data.StructLayout(
    {
        "descriptor": DESCRIPTOR,
        "header_address": 64,
        "key_bytes": _LENGTH_BITS,
        "query_bytes": _LENGTH_BITS,
        "fault": Fault,
    }
)


class DescriptorCheck(wiring.Component):
    """Checks descriptors against the job and its windows, and gives each its verdict.

    Formula: the first of HEAD_DIM, HEADS, KEY_FORMAT, SHIFT (of the job's heads), KEY_ADDRESS, QUERY_ADDRESS
    and, for a selection, TOKEN_ORDER that is broken, with the address in question and the block's tokens. An
    address is wrong if it is misaligned or its bytes are not all in the window; those of a block are both
    planes, whatever is streamed of them, and its header.
    Timing: latency 2, interval 1; a stalled `o` stops `i` after two.
    Numerics: unsigned, exact, see WindowCheck.
    Cuts: inputs to `o`, whose fault comes through a priority gate; `i.ready` follows `o.ready`.
    Reset: valid bits.

    Args:
        design: layout of key blocks, width of folded codes.

    Members:
        arguments: of the job, stable since two cycles before the first descriptor.
        i: descriptors.
        o: the same with what to read for them and what is wrong, code NONE if nothing is.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._control = PipelineControl(2)
        # Never more under way than the pipeline holds, which the windows' own limit must not undercut.
        self._keys, self._queries = (WindowCheck(self._control.capacity + 1, 64, 32) for _ in range(2))
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "i": In(stream.Signature(DESCRIPTOR)),
                "o": Out(stream.Signature(CHECKED)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a descriptor to its verdict."""
        return self._control.latency

    @property
    def interval(self) -> int:
        """Cycles between two descriptors."""
        return 1

    def elaborate(self, platform):
        assert self._keys.latency == self._control.latency
        m = Module()
        m.submodules.control = control = self._control
        m.submodules.keys, m.submodules.queries = keys, queries = self._keys, self._queries
        job, entry, out = self.arguments, self.i.payload, self.o.payload
        head_dim, heads = job.head_dim[:_HEAD_DIM_BITS], job.heads[:HEADS_BITS]
        plane_bytes = Signal(_LENGTH_BITS, reset_less=True)
        query_bytes = Signal(_LENGTH_BITS, reset_less=True)
        m.d.sync += [
            plane_bytes.eq(head_dim * (self.design.block_tokens // 2)),
            query_bytes.eq(heads * head_dim * query_code_bytes(self.design.query_bits)),
        ]
        block_bytes = (plane_bytes << 1)[:_LENGTH_BITS]
        key_bytes = Mux(entry.key_format == KeyFormat.INT4, plane_bytes, block_bytes)

        # Both windows and the pipeline beside them move in step.
        m.d.comb += [
            control.i_valid.eq(self.i.valid),
            self.i.ready.eq(control.i_ready),
            self.o.valid.eq(control.o_valid),
            control.o_ready.eq(self.o.ready),
            keys.window_base.eq(job.key_address),
            keys.window_bytes.eq(job.key_bytes),
            keys.i.payload.address.eq(entry.key_address),
            keys.i.payload.bytes.eq(block_bytes + HEADER_BYTES),
            queries.window_base.eq(job.query_address),
            queries.window_bytes.eq(job.query_bytes),
            queries.i.payload.address.eq(entry.query_address),
            queries.i.payload.bytes.eq(query_bytes),
        ]
        for window in (keys, queries):
            m.d.comb += [
                window.i.valid.eq(self.i.valid),
                window.o.ready.eq(self.o.ready),
                window.status_taken.eq(self.o.valid & self.o.ready),
            ]

        # Tokens of a selection's blocks ascend, up to the last there is.
        block_tokens = self.design.block_tokens
        follows = Signal(TOKEN_INDEX.width + 1)  # the first token that the next block may have
        after = Signal(TOKEN_INDEX.width + 1)
        last = entry.first_token + (block_tokens - 1)
        m.d.comb += after.eq(last)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += follows.eq(last + 1)

        shifts_wrong = Signal(MAX_QUERY_GROUP)
        m.d.comb += [
            wrong.eq((heads > h) & (entry.shift[h] > SHIFT.max)) for h, wrong in enumerate(shifts_wrong)
        ]
        found = {
            ErrorCode.HEAD_DIM: entry.head_dim != job.head_dim,
            ErrorCode.HEADS: entry.heads != job.heads,
            ErrorCode.KEY_FORMAT: entry.key_format > max(KeyFormat),
            ErrorCode.SHIFT: shifts_wrong.any(),
            ErrorCode.KEY_ADDRESS: entry.key_address % BLOCK_ALIGN_BYTES != 0,
            ErrorCode.QUERY_ADDRESS: entry.query_address % ALIGN_BYTES != 0,
            ErrorCode.TOKEN_ORDER: job.flags.top_k & ((entry.first_token < follows) | after[-1]),
        }
        wrong = [Signal(len(found), name=f"wrong{rank}", reset_less=True) for rank in range(2)]
        kept = [Signal(CHECKED, name=f"kept{rank}", reset_less=True) for rank in range(2)]
        with m.If(control.enable):
            m.d.sync += [bit.eq(value) for bit, value in zip(wrong[0], found.values(), strict=True)]
            m.d.sync += [
                kept[0].descriptor.eq(entry),
                kept[0].header_address.eq(entry.key_address + block_bytes),
                kept[0].key_bytes.eq(key_bytes),
                kept[0].query_bytes.eq(query_bytes),
                wrong[1].eq(wrong[0]),
                kept[1].eq(kept[0]),
            ]
        m.d.comb += [
            out.descriptor.eq(kept[1].descriptor),
            out.header_address.eq(kept[1].header_address),
            out.key_bytes.eq(kept[1].key_bytes),
            out.query_bytes.eq(kept[1].query_bytes),
            out.fault.token.eq(kept[1].descriptor.first_token),
            out.fault.tokens.eq(tokens_of_block(out.fault, block_tokens)),
        ]
        outside = {
            ErrorCode.KEY_ADDRESS: (keys.o.payload.refused, kept[1].descriptor.key_address),
            ErrorCode.QUERY_ADDRESS: (queries.o.payload.refused, kept[1].descriptor.query_address),
        }
        for index, code in reversed(list(enumerate(found))):
            refused, address = outside.get(code, (0, 0))
            with m.If(wrong[1][index] | refused):
                m.d.comb += [out.fault.code.eq(code), out.fault.address.eq(address)]
        return m
