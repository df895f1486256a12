"""Descriptors, headers and query codes through one reader."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi_reader import read_beat_layout
from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.descriptor_fetch import CHUNK

_READS = 32  # whose beats have not all been used
_DESCRIPTORS, _HEADER, _QUERY = range(3)  # kinds of reads
_TAG = data.StructLayout({"kind": 2, "count": range(CHUNK + 1), "token": 32})


class ListReads(wiring.Component):
    """Lends a reader to those who ask for descriptors, headers and query codes, and tells their beats apart.

    Formula: descriptors go first, which are few and always taken, then headers, then codes. What waits for
    the scorer never keeps back what the scorer waits for: a block's header and codes are asked for before
    those of the next one. Each read has its own window: the list, or that of keys or queries.
    Errors: SLVERR and DECERR are BUS_ERROR with the address of the beat and, but for descriptors, their
    block's tokens. A refused read is DESCRIPTOR_ADDRESS, KEY_ADDRESS or QUERY_ADDRESS; checked jobs have
    none.
    Timing: nothing is added to the reader's.
    Numerics: none.
    Reset: all; `clear` does the same to all but the count of reads under way.

    Args:
        design: bus, tokens of a block.

    Members:
        arguments: of the job.
        clear: between jobs and passes: asks for nothing.
        drains: takes what still comes, and drops it.
        descriptor_read, descriptor_count: reads for DescriptorFetch.
        header_read, query_read, first_token: reads of headers and of codes.
        command, window_base, window_bytes, beats, status: the reader.
        o_descriptors, o_headers, o_queries: beats.
        landed: descriptors of a read that has ended well in this cycle.
        fault: what a read met, for a cycle, otherwise code NONE.
        idle: no read is under way.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.block_tokens = design.block_tokens
        bus_bytes = design.bus_bytes
        command = stream.Signature(command_layout(64, 32))
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "clear": In(1),
                "drains": In(1),
                "descriptor_read": In(command),
                "descriptor_count": In(range(CHUNK + 1)),
                "header_read": In(command),
                "query_read": In(command),
                "first_token": In(32),
                "command": Out(command),
                "window_base": Out(64),
                "window_bytes": Out(64),
                "beats": In(stream.Signature(read_beat_layout(bus_bytes))),
                "status": In(stream.Signature(status_layout(64), always_ready=True)),
                "o_descriptors": Out(stream.Signature(8 * bus_bytes, always_ready=True)),
                "o_headers": Out(stream.Signature(8 * bus_bytes)),
                "o_queries": Out(stream.Signature(8 * bus_bytes)),
                "landed": Out(range(CHUNK + 1)),
                "fault": Out(Fault),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        job, command = self.arguments, self.command
        emptied = ResetInserter(self.clear)
        tags = fifo.SyncFIFOBuffered(width=_TAG.size, depth=_READS)
        kinds = fifo.SyncFIFOBuffered(width=2, depth=_READS)  # of the beats that come
        m.submodules.tags, m.submodules.kinds = emptied(tags), emptied(kinds)

        kind, asks = Signal(2), Signal()
        tag = data.View(_TAG, tags.w_data)
        has_room = tags.w_rdy & kinds.w_rdy & ~self.clear
        # By kind, the most urgent first: who asks, the window, who takes the beats.
        ports = (
            (
                self.descriptor_read,
                (job.descriptor_address, job.block_count * DESCRIPTOR_BYTES),
                self.o_descriptors,
            ),
            (self.header_read, (job.key_address, job.key_bytes), self.o_headers),
            (self.query_read, (job.query_address, job.query_bytes), self.o_queries),
        )
        beats = self.beats
        m.d.comb += [
            kind.eq(
                Mux(self.descriptor_read.valid, _DESCRIPTORS, Mux(self.header_read.valid, _HEADER, _QUERY))
            ),
            asks.eq(command.valid & command.ready),
            tags.w_en.eq(asks),
            tag.kind.eq(kind),
            tag.count.eq(self.descriptor_count),
            tag.token.eq(self.first_token),
            kinds.w_en.eq(asks),
            kinds.w_data.eq(kind),
            beats.ready.eq(self.drains),
            kinds.r_en.eq(beats.valid & beats.ready & beats.payload.last),
        ]
        for index, (read, (base, nbytes), sink) in enumerate(ports):
            with m.If(kind == index):
                m.d.comb += [
                    command.valid.eq(has_room & read.valid),
                    command.payload.eq(read.payload),
                    read.ready.eq(has_room & command.ready),
                    self.window_base.eq(base),
                    self.window_bytes.eq(nbytes),
                ]
            m.d.comb += sink.payload.eq(beats.payload.data)
            with m.If(kinds.r_rdy & (kinds.r_data == index)):
                m.d.comb += [sink.valid.eq(beats.valid), beats.ready.eq(self.drains | sink.ready)]

        found, status = data.View(_TAG, tags.r_data), self.status.payload
        of_list = found.kind == _DESCRIPTORS
        m.d.comb += [
            tags.r_en.eq(self.status.valid),
            self.fault.address.eq(status.address),
            self.fault.token.eq(Mux(of_list, 0, found.token)),
            self.fault.tokens.eq(Mux(of_list, 0, tokens_of_block(self.fault, self.block_tokens))),
        ]
        with m.If(self.status.valid & tags.r_rdy):
            with m.If(status.code == TransferCode.OKAY):
                m.d.comb += self.landed.eq(Mux(of_list, found.count, 0))
            with m.Elif(status.code == TransferCode.WINDOW):
                of_block = Mux(found.kind == _HEADER, ErrorCode.KEY_ADDRESS, ErrorCode.QUERY_ADDRESS)
                m.d.comb += self.fault.code.eq(Mux(of_list, ErrorCode.DESCRIPTOR_ADDRESS, of_block))
            with m.Else():
                m.d.comb += self.fault.code.eq(ErrorCode.BUS_ERROR)

        under_way = Signal(range(_READS + 1))
        m.d.sync += under_way.eq(under_way + asks - self.status.valid)
        m.d.comb += self.idle.eq(under_way == 0)
        return m
