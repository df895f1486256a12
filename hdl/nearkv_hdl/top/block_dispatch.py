"""From checked descriptors to reads and queued blocks."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.bus.transfer import command_layout
from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.header_check import BLOCKS_AHEAD, EXPECTED
from nearkv_hdl.top.job_check import CHECKED
from nearkv_hdl.top.query_feed import queued_block_layout


class BlockDispatch(wiring.Component):
    """Drops the checked descriptors of the first pass; in the second, asks for what each one names.

    Formula: in the second pass a descriptor leads to a read of its block's header with what that must say,
    one of its folded codes, one of its planes and a queued block, each as soon as it can be taken. A faulty
    descriptor leads to nothing but its fault.
    Timing: at the earliest one cycle a descriptor; a queued block leaves two cycles later.
    Numerics: a bias has 32 bits, a shift its lowest 3: others were refused.
    Reset: all.

    Args:
        design: head dimensions, query group.

    Members:
        block_count, head_dim: of the job, stable.
        stream_pass: this is the second pass.
        i: checked descriptors.
        o_header_read, o_query_read, o_key_read: reads.
        first_token: of the descriptor at hand, for all three.
        o_expected: what the header must say.
        o_block: blocks in order.
        fault: what is wrong with the descriptor at hand, code NONE if nothing is.
        all_taken: every descriptor of the job has been, since the reset.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        command = stream.Signature(command_layout(64, 32))
        super().__init__(
            {
                "block_count": In(32),
                "head_dim": In(32),
                "stream_pass": In(1),
                "i": In(stream.Signature(CHECKED)),
                "o_header_read": Out(command),
                "o_expected": Out(stream.Signature(EXPECTED)),
                "o_query_read": Out(command),
                "o_key_read": Out(command),
                "first_token": Out(32),
                "o_block": Out(stream.Signature(queued_block_layout(design))),
                "fault": Out(Fault),
                "all_taken": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        design, checked = self.design, self.i.payload
        entry = checked.descriptor
        layout = queued_block_layout(design)
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=layout.size, depth=BLOCKS_AHEAD)
        taken = Signal(32)
        is_good = checked.fault.code == ErrorCode.NONE
        head_dim_index = Signal(2)
        for index, head_dim in enumerate(design.head_dims):
            with m.If(self.head_dim == head_dim):
                m.d.comb += head_dim_index.eq(index)

        # What a descriptor leads to, each done once.
        queued = Signal(layout)
        m.d.comb += [
            queued.query_address.eq(entry.query_address),
            queued.command.first_token.eq(entry.first_token),
            queued.command.head_dim_index.eq(head_dim_index),
            queued.command.key_format.eq(entry.key_format),
            queued.command.last.eq(taken + 1 == self.block_count),
            queue.w_data.eq(queued),
            self.o_header_read.payload.address.eq(checked.header_address),
            self.o_header_read.payload.bytes.eq(HEADER_BYTES),
            self.o_expected.payload.header_address.eq(checked.header_address),
            self.o_expected.payload.key_address.eq(entry.key_address),
            self.o_expected.payload.key_format.eq(entry.key_format),
            self.o_expected.payload.first_token.eq(entry.first_token),
            self.o_expected.payload.generation.eq(entry.generation),
            self.o_query_read.payload.address.eq(entry.query_address),
            self.o_query_read.payload.bytes.eq(checked.query_bytes),
            self.o_key_read.payload.address.eq(entry.key_address),
            self.o_key_read.payload.bytes.eq(checked.key_bytes),
            self.first_token.eq(entry.first_token),
        ]
        for h in range(design.query_group):
            m.d.comb += [queued.command.shift[h].eq(entry.shift[h]), queued.command.bias[h].eq(entry.bias[h])]
        offers = self.i.valid & self.stream_pass & is_good
        sinks = [
            (self.o_header_read.valid, self.o_header_read.ready),
            (self.o_expected.valid, self.o_expected.ready),
            (self.o_query_read.valid, self.o_query_read.ready),
            (self.o_key_read.valid, self.o_key_read.ready),
            (queue.w_en, queue.w_rdy),
        ]
        done = Signal(len(sinks))
        over = Signal(len(sinks))
        for index, (valid, ready) in enumerate(sinks):
            m.d.comb += [valid.eq(offers & ~done[index]), over[index].eq(done[index] | ready)]
        takes = Signal()
        m.d.comb += [
            self.i.ready.eq(~is_good | ~self.stream_pass | over.all()),
            takes.eq(self.i.valid & self.i.ready),
        ]
        with m.If(takes):
            m.d.sync += [taken.eq(taken + 1), done.eq(0)]
        with m.Elif(offers):
            m.d.sync += done.eq(over)
        m.d.comb += [
            self.o_block.valid.eq(queue.r_rdy),
            Value.cast(self.o_block.payload).eq(queue.r_data),
            queue.r_en.eq(self.o_block.ready),
            self.all_taken.eq(taken == self.block_count),
        ]
        with m.If(self.i.valid):
            m.d.comb += self.fault.eq(checked.fault)
        return m
