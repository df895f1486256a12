"""Descriptors and query codes through one reader."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi_reader import read_beat_layout
from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.descriptor_fetch import CHUNK

_READS = 32  # whose beats have not all been used
_TAG = data.StructLayout({"is_query": 1, "count": range(CHUNK + 1), "token": 32})


class ListReads(wiring.Component):
    """Lends a reader to those who ask for descriptors and for query codes, and tells their beats apart.

    Formula: descriptors go first, which are few and always taken, so that codes which wait for the scorer
    never keep them back for good. Each read has its own window: the list, or that of queries.
    Errors: SLVERR and DECERR are BUS_ERROR with the address of the beat and, for codes, their block's first
    token. A refused read is DESCRIPTOR_ADDRESS or QUERY_ADDRESS; checked jobs have none.
    Timing: nothing is added to the reader's.
    Numerics: none.
    Reset: all; `clear` does the same to all but the count of reads under way.

    Args:
        bus_bytes: bytes of a beat.

    Members:
        arguments: of the job.
        clear: between jobs and passes: asks for nothing.
        drains: takes what still comes, and drops it.
        descriptor_read, descriptor_count: reads for DescriptorFetch.
        query_read, first_token: reads of codes.
        command, window_base, window_bytes, beats, status: the reader.
        o_descriptors, o_queries: beats.
        landed: descriptors of a read that has ended well in this cycle.
        fault: what a read met, for a cycle, otherwise code NONE.
        idle: no read is under way.

    """

    def __init__(self, bus_bytes: int) -> None:
        command = stream.Signature(command_layout(64, 32))
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "clear": In(1),
                "drains": In(1),
                "descriptor_read": In(command),
                "descriptor_count": In(range(CHUNK + 1)),
                "query_read": In(command),
                "first_token": In(32),
                "command": Out(command),
                "window_base": Out(64),
                "window_bytes": Out(64),
                "beats": In(stream.Signature(read_beat_layout(bus_bytes))),
                "status": In(stream.Signature(status_layout(64), always_ready=True)),
                "o_descriptors": Out(stream.Signature(8 * bus_bytes, always_ready=True)),
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
        kinds = fifo.SyncFIFOBuffered(width=1, depth=_READS)  # of the beats that come
        m.submodules.tags, m.submodules.kinds = emptied(tags), emptied(kinds)

        is_query, asks = Signal(), Signal()
        tag = data.View(_TAG, tags.w_data)
        has_room = tags.w_rdy & kinds.w_rdy & ~self.clear
        list_bytes = job.block_count * DESCRIPTOR_BYTES
        m.d.comb += [
            is_query.eq(~self.descriptor_read.valid),
            command.valid.eq(has_room & (self.descriptor_read.valid | self.query_read.valid)),
            command.payload.eq(Mux(is_query, self.query_read.payload, self.descriptor_read.payload)),
            self.descriptor_read.ready.eq(has_room & command.ready),
            self.query_read.ready.eq(has_room & command.ready & is_query),
            self.window_base.eq(Mux(is_query, job.query_address, job.descriptor_address)),
            self.window_bytes.eq(Mux(is_query, job.query_bytes, list_bytes)),
            asks.eq(command.valid & command.ready),
            tags.w_en.eq(asks),
            tag.is_query.eq(is_query),
            tag.count.eq(self.descriptor_count),
            tag.token.eq(self.first_token),
            kinds.w_en.eq(asks),
            kinds.w_data.eq(is_query),
        ]

        beats, of_query = self.beats, kinds.r_data[0]
        m.d.comb += [
            self.o_queries.payload.eq(beats.payload.data),
            self.o_descriptors.payload.eq(beats.payload.data),
            self.o_queries.valid.eq(beats.valid & kinds.r_rdy & of_query),
            self.o_descriptors.valid.eq(beats.valid & kinds.r_rdy & ~of_query),
            beats.ready.eq(self.drains | (kinds.r_rdy & (~of_query | self.o_queries.ready))),
            kinds.r_en.eq(beats.valid & beats.ready & beats.payload.last),
        ]

        found, status = data.View(_TAG, tags.r_data), self.status.payload
        m.d.comb += [
            tags.r_en.eq(self.status.valid),
            self.fault.address.eq(status.address),
            self.fault.token.eq(Mux(found.is_query, found.token, 0)),
        ]
        with m.If(self.status.valid & tags.r_rdy):
            with m.If(status.code == TransferCode.OKAY):
                m.d.comb += self.landed.eq(Mux(found.is_query, 0, found.count))
            with m.Elif(status.code == TransferCode.WINDOW):
                refusal = Mux(found.is_query, ErrorCode.QUERY_ADDRESS, ErrorCode.DESCRIPTOR_ADDRESS)
                m.d.comb += self.fault.code.eq(refusal)
            with m.Else():
                m.d.comb += self.fault.code.eq(ErrorCode.BUS_ERROR)

        under_way = Signal(range(_READS + 1))
        m.d.sync += under_way.eq(under_way + asks - self.status.valid)
        m.d.comb += self.idle.eq(under_way == 0)
        return m
