"""Read requests and write packets on one request interface."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.pcie.formats import (
    BEAT_BYTES,
    BEAT_DWORDS,
    REQUEST_DWORDS,
    RQ_DESCRIPTOR,
    RQ_USER,
    RequestType,
    packet_stream,
)

PACKET_BEAT = data.StructLayout(
    {
        "data": 8 * BEAT_BYTES,
        "last_lane": range(BEAT_DWORDS),  # last dword
        "first_be": 4,
        "last_be": 4,
        "first": 1,
        "last": 1,
    }
)


def read_request_layout(tags: int) -> data.StructLayout:
    """A memory read request: what differs from one to the next."""
    return data.StructLayout({"dword_address": 62, "dwords": 11, "first_be": 4, "tag": range(tags)})


def descriptor_of(m: Module, request_type: RequestType, dword_address, dwords, tag=0) -> Value:
    """Descriptor of a memory request by function 0, without attributes, in traffic class 0."""
    descriptor = Signal(RQ_DESCRIPTOR, name=f"descriptor_{request_type.name.lower()}")
    m.d.comb += [
        descriptor.dword_address.eq(dword_address),
        descriptor.dwords.eq(dwords),
        descriptor.request_type.eq(request_type),
        descriptor.tag.eq(tag),
    ]
    return descriptor.as_value()


class RequestArbiter(wiring.Component):
    """Sends packets of two kinds, one at a time.

    Formula: packets as they come; if both kinds wait, they take turns. A packet that has begun, or whose
    first beat was offered, goes first to its end. `tvalid` falls within a packet only if `packet.valid` does.
    Timing: latency 0, interval 1, between packets too.
    Numerics: none.
    Cuts: none.
    Reset: the turn.

    Args:
        tags: tags of read requests.

    Members:
        request: read requests, a beat each.
        packet: beats of write requests.
        rq: to the integrated block.

    """

    def __init__(self, tags: int) -> None:
        super().__init__(
            {
                "request": In(stream.Signature(read_request_layout(tags))),
                "packet": In(stream.Signature(PACKET_BEAT)),
                "rq": Out(packet_stream(RQ_USER)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a packet to the block."""
        return 0

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        request, packet, rq = self.request.payload, self.packet.payload, self.rq
        # `wrote` is also the turn: after a write packet, a read request.
        writes, wrote, kept = Signal(), Signal(), Signal()
        m.d.comb += writes.eq(Mux(kept, wrote, self.packet.valid & ~(self.request.valid & wrote)))
        with m.If(rq.tvalid):
            m.d.sync += [wrote.eq(writes), kept.eq(~(rq.tready & rq.tlast))]

        descriptor = descriptor_of(
            m, RequestType.MEMORY_READ, request.dword_address, request.dwords, request.tag
        )
        beat = Signal(PACKET_BEAT)
        m.d.comb += [
            self.request.ready.eq(rq.tready & ~writes),
            self.packet.ready.eq(rq.tready & writes),
            rq.tvalid.eq(Mux(writes, self.packet.valid, self.request.valid)),
        ]
        with m.If(writes):
            m.d.comb += beat.eq(packet)
        with m.Else():
            m.d.comb += [
                beat.data.eq(descriptor),
                beat.last_lane.eq(REQUEST_DWORDS - 1),
                beat.first_be.eq(request.first_be),
                beat.last_be.eq(Mux(request.dwords == 1, 0, 0b1111)),
                *(beat.first.eq(1), beat.last.eq(1)),
            ]
        user = Signal(RQ_USER)
        m.d.comb += [
            user.first_be[0].eq(Mux(beat.first, beat.first_be, 0)),
            user.last_be[0].eq(Mux(beat.first, beat.last_be, 0)),
            user.is_sop.eq(beat.first),
            user.is_eop.eq(beat.last),
            user.eop_lane[0].eq(Mux(beat.last, beat.last_lane, 0)),
            rq.tuser.eq(user),
            rq.tdata.eq(beat.data),
            rq.tkeep.eq((2 << beat.last_lane) - 1),
            rq.tlast.eq(beat.last),
        ]
        return m
