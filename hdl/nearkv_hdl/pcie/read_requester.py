"""AXI4 reads as memory read requests: the requester's AR and R channels."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import MAX_BURST_BEATS, Response, axi_read
from nearkv_hdl.pcie.completion_room import BEAT_CREDITS, CompletionRoom
from nearkv_hdl.pcie.completions import CompletionReceiver
from nearkv_hdl.pcie.dword_memory import DwordMemory
from nearkv_hdl.pcie.formats import BEAT_BYTES, BEAT_DWORDS, RC_USER, packet_stream
from nearkv_hdl.pcie.read_splitter import LANE_BITS, PAGE_BEATS, ReadSplitter
from nearkv_hdl.pcie.request_arbiter import read_request_layout
from nearkv_hdl.pcie.tags import TagPool
from nearkv_hdl.stream.pipeline import PipelineControl


class ReadRequester(wiring.Component):
    """Splits bursts, keeps count of tags and room, and puts completions together again.

    Formula: each piece of a burst (ReadSplitter) becomes a request as soon as there is a tag (TagPool) and
    room for all its completions (CompletionRoom). Both come back when the piece's answer is given. The room
    bounds the rows in use of this unit's memory as well.
    Order: answers are given in the order of requests, whatever their identifiers; completions may come in any
    order among tags. A piece is answered when all of it has come.
    Errors: SLVERR for every beat of a piece that failed (CompletionReceiver) or timed out (TagPool), and of a
    burst that ReadSplitter refused; data are then whatever the memory holds.
    Timing: latency 3 from `arvalid` to `request`; 4 from a request's last completion beat to `rvalid`;
    interval 1 between beats, pieces included.
    Numerics: none.
    Cuts: `request` comes from registers; `rready` reaches R's clock enable and the memory.
    Reset: all; only together with the bus and the integrated block.

    Args:
        tags: a power of two up to 256.
        completion_headers, completion_bytes: of the integrated block's completion buffer (PG213, Completion
            Space), from those of one request of 4 KiB.
        time_bits: see TagPool.

    Members:
        s_axi: AR and R.
        request: one request each.
        rc: completions.
        max_read, boundary_128, bus_master_enable: see ReadSplitter.
        extended_tags, timeout_cycles, quarantine_cycles: see TagPool.
        tags_free, credits_free, headers_free: what is left.
        times_out, unexpected, dropped_late: events, see TagPool and CompletionReceiver.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self,
        tags: int = 256,
        completion_headers: int = 128,
        completion_bytes: int = 32768,
        time_bits: int = 32,
    ) -> None:
        self._room = CompletionRoom(completion_headers, completion_bytes)
        self.credits = self._room.credits
        rows = 1 << (self.credits // BEAT_CREDITS - 1).bit_length()
        self._tags = TagPool(tags, time_bits)
        self._receiver = CompletionReceiver(tags, rows)
        self._memory = DwordMemory(rows)
        self._splitter = ReadSplitter()
        super().__init__(
            {
                "s_axi": In(axi_read(64, BEAT_BYTES)),
                "request": Out(stream.Signature(read_request_layout(tags))),
                "rc": In(packet_stream(RC_USER)),
                "max_read": In(3),
                "boundary_128": In(1),
                "bus_master_enable": In(1),
                "extended_tags": In(1),
                "timeout_cycles": In(time_bits - 2),
                "quarantine_cycles": In(time_bits - 2),
                "tags_free": Out(range(tags + 1)),
                "credits_free": Out(range(self.credits + 1)),
                "headers_free": Out(range(completion_headers + 1)),
                "times_out": Out(1),
                "unexpected": Out(1),
                "dropped_late": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from an address to its first request."""
        return self._splitter.latency + 1

    @property
    def answer_latency(self) -> int:
        """Cycles from a request's last completion beat to its first beat on R, if it is the oldest."""
        return self._receiver.latency + 1 + self._memory.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.tags = tags = self._tags
        m.submodules.room = room = self._room
        m.submodules.receiver = receiver = self._receiver
        m.submodules.memory = memory = self._memory
        m.submodules.splitter = splitter = self._splitter
        bus = self.s_axi
        owed_layout = data.StructLayout(
            {
                "tag": range(tags.tags),
                "more_beats": range(MAX_BURST_BEATS),
                "headers": range(PAGE_BEATS + 1),
                "id": 1,
                "last": 1,
                "refused": 1,
            }
        )
        m.submodules.owed = owed = fifo.SyncFIFOBuffered(width=owed_layout.size, depth=tags.tags)

        burst = splitter.i.payload
        m.d.comb += [
            splitter.i.valid.eq(bus.arvalid),
            bus.arready.eq(splitter.i.ready),
            *(getattr(burst, name).eq(getattr(bus, f"ar{name}")) for name, _ in burst.shape()),
            splitter.max_read.eq(self.max_read),
            splitter.boundary_128.eq(self.boundary_128),
            splitter.bus_master_enable.eq(self.bus_master_enable),
            tags.extended.eq(self.extended_tags),
            tags.timeout_cycles.eq(self.timeout_cycles),
            tags.quarantine_cycles.eq(self.quarantine_cycles),
            self.tags_free.eq(tags.tags_free),
            *(self.credits_free.eq(room.credits_free), self.headers_free.eq(room.headers_free)),
            self.times_out.eq(tags.expires),
        ]

        # A request leaves if tag and room are there; a refused piece is only remembered.
        piece = splitter.o.payload
        request = self.request.payload
        lane = piece.address[:LANE_BITS]
        piece_bytes = ((piece.more_beats + 1) << LANE_BITS)[: LANE_BITS + 7] - lane
        issues, can_issue = Signal(), Signal()
        next_row = Signal(range(memory.rows))
        end_row = Signal.like(next_row)
        entry = data.View(owed_layout, owed.w_data)
        m.d.comb += [
            *(room.more_beats.eq(piece.more_beats), room.needed_headers.eq(piece.headers)),
            can_issue.eq(
                (tags.available & room.fits & receiver.expect_ready)
                & (~self.request.valid | self.request.ready)
            ),
            splitter.o.ready.eq(owed.w_rdy & (piece.refused | can_issue)),
            owed.w_en.eq(splitter.o.valid & splitter.o.ready),
            issues.eq(owed.w_en & ~piece.refused),
            *(getattr(entry, name).eq(getattr(piece, name)) for name in owed_layout.members if name != "tag"),
            entry.tag.eq(tags.tag),
            end_row.eq(next_row + piece.more_beats + 1),
            *(tags.take.eq(issues), room.take.eq(issues)),
            receiver.expect.eq(issues),
            receiver.expect_tag.eq(tags.tag),
            receiver.expectation.end_row.eq(end_row),
            receiver.expectation.bytes.eq(piece_bytes),
        ]
        with m.If(self.request.ready):
            m.d.sync += self.request.valid.eq(0)
        with m.If(issues):
            m.d.sync += [
                next_row.eq(end_row),
                self.request.valid.eq(1),
                request.dword_address.eq(piece.address[2:]),
                request.dwords.eq((piece_bytes + 3) >> 2),
                request.first_be.eq(Const(0b1111, 4) << piece.address[:2]),
                request.tag.eq(tags.tag),
            ]

        self._connect_completions(m)

        # The oldest piece's beats.
        head = data.View(owed_layout, owed.r_data)
        m.submodules.control = control = PipelineControl(1)
        index, row = Signal(range(MAX_BURST_BEATS)), Signal.like(next_row)
        moves, ends = Signal(), Signal()
        m.d.comb += [
            tags.answer_tag.eq(head.tag),
            control.i_valid.eq(owed.r_rdy & (head.refused | tags.done)),
            moves.eq(control.i_valid & control.i_ready),
            ends.eq(moves & (index == head.more_beats)),
            owed.r_en.eq(ends),
            *(tags.release.eq(ends & ~head.refused), room.give.eq(tags.release)),
            *(room.given_more_beats.eq(head.more_beats), room.given_headers.eq(head.headers)),
            memory.read_address.eq(Cat(Const(0, (BEAT_DWORDS - 1).bit_length()), row)),
            memory.read_enable.eq(control.enable),
            control.o_ready.eq(bus.rready),
            bus.rvalid.eq(control.o_valid),
            bus.rdata.eq(memory.read_data),
        ]
        with m.If(moves):
            m.d.sync += [index.eq(Mux(ends, 0, index + 1)), row.eq(row + ~head.refused)]
        with m.If(control.enable):
            m.d.sync += [
                bus.rid.eq(head.id),
                bus.rlast.eq(ends & head.last),
                bus.rresp.eq(Mux(head.refused | tags.failed, Response.SLVERR, Response.OKAY)),
            ]
        return m

    def _connect_completions(self, m: Module) -> None:
        tags, receiver, memory = self._tags, self._receiver, self._memory
        wiring.connect(m, wiring.flipped(self.rc), receiver.rc)
        m.d.comb += [
            tags.waits.eq(self.request.valid),
            tags.sent.eq(self.request.valid & self.request.ready),
            tags.sent_tag.eq(self.request.payload.tag),
            tags.hold.eq(receiver.looks_up),
            tags.active.eq(receiver.active),
            tags.active_tag.eq(receiver.active_tag),
            tags.lookup_tag.eq(receiver.lookup_tag),
            receiver.outstanding.eq(tags.outstanding),
            receiver.late.eq(tags.late),
            tags.fail.eq(receiver.fail),
            tags.end.eq(receiver.end),
            tags.end_tag.eq(receiver.end_tag),
            memory.write_address.eq(receiver.write_address),
            memory.write_data.eq(receiver.write_data),
            memory.write_enable.eq(receiver.write_enable),
            self.unexpected.eq(receiver.unexpected),
            self.dropped_late.eq(receiver.dropped_late),
        ]
