"""AXI4 writes as posted memory writes: the requester's AW, W and B channels."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import Response, axi_write
from nearkv_hdl.pcie.dword_memory import DwordMemory
from nearkv_hdl.pcie.formats import BEAT_BYTES, BEAT_DWORDS, REQUEST_DWORDS, RQ_DESCRIPTOR, RequestType
from nearkv_hdl.pcie.request_arbiter import PACKET_BEAT, descriptor_of
from nearkv_hdl.pcie.write_packer import MOST_ROWS, PAYLOAD, WritePacker
from nearkv_hdl.stream.credit import BUFFER_LATENCY
from nearkv_hdl.stream.pipeline import PipelineControl

_LANE_BITS = (BEAT_DWORDS - 1).bit_length()
_PAYLOADS = 8  # that wait
_ANSWERS = 8  # bursts whose last packet is under way or whose response waits

_BESIDE = data.StructLayout(
    {
        "payload": PAYLOAD,
        "last_lane": range(BEAT_DWORDS),
        "first": 1,
        "last": 1,
    }
)


class WriteRequester(wiring.Component):
    """Makes a packet of each payload and answers a burst when its last packet is given away.

    Formula: four dwords of descriptor, then the payload; see WritePacker for how bursts are cut. Packets are
    sent, and responses given, in the order of bursts.
    Errors: SLVERR for a burst of which WritePacker stored less than was strobed; what it stored is written.
    Timing: latency 6 from a payload's last beat to the packet's first; interval 1 between the beats of a
    packet, in which `packet.valid` never falls, and between packets. `bvalid` 2 cycles after the burst's last
    packet is taken. A burst without a packet takes a cycle among them.
    Numerics: none.
    Cuts: `packet` comes from registers; `packet.ready` reaches the clock enables of two ranks.
    Reset: all; only together with the bus and the integrated block.

    Args:
        rows: see WritePacker.

    Members:
        s_axi: AW, W and B.
        max_payload, bus_master_enable: see WritePacker.
        packet: beats of memory write requests.

    """

    def __init__(self, rows: int = 64) -> None:
        self._packer = WritePacker(rows)
        self._memory = DwordMemory(rows)
        super().__init__(
            {
                "s_axi": In(axi_write(64, BEAT_BYTES)),
                "max_payload": In(2),
                "bus_master_enable": In(1),
                "packet": Out(stream.Signature(PACKET_BEAT)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a payload's last beat on W to the first beat of its packet."""
        return self._packer.latency + BUFFER_LATENCY + 2

    @property
    def response_latency(self) -> int:
        """Cycles from the last beat of a burst's last packet to `bvalid`."""
        return BUFFER_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.packer = packer = self._packer
        m.submodules.memory = memory = self._memory
        bus = self.s_axi
        burst = packer.bursts.payload
        m.d.comb += [
            packer.max_payload.eq(self.max_payload),
            packer.bus_master_enable.eq(self.bus_master_enable),
            *(getattr(burst, name).eq(getattr(bus, f"aw{name}")) for name, _ in burst.shape()),
            *(packer.bursts.valid.eq(bus.awvalid), bus.awready.eq(packer.bursts.ready)),
            *(packer.beats.payload.data.eq(bus.wdata), packer.beats.payload.strobes.eq(bus.wstrb)),
            *(packer.beats.valid.eq(bus.wvalid), bus.wready.eq(packer.beats.ready)),
            memory.write_address.eq(packer.row << _LANE_BITS),
            memory.write_data.eq(packer.row_data),
            memory.write_enable.eq(packer.row_enable.replicate(BEAT_DWORDS)),
        ]
        m.submodules.payloads = payloads = fifo.SyncFIFOBuffered(width=PAYLOAD.size, depth=_PAYLOADS)
        m.d.comb += [
            payloads.w_data.eq(packer.o.payload),
            payloads.w_en.eq(packer.o.valid),
            packer.o.ready.eq(payloads.w_rdy),
        ]

        # Beats of the oldest payload's packet; one without rows is a beat that is not sent.
        head = data.View(PAYLOAD, payloads.r_data)
        m.submodules.control = control = PipelineControl(2)
        under_way = Signal(range(_ANSWERS + 1))
        sent = Signal(range((MOST_ROWS + 1) * BEAT_DWORDS + 1))  # dwords
        row = Signal(range(memory.rows))
        rank1, rank2 = Signal(_BESIDE, reset_less=True), Signal(_BESIDE, reset_less=True)
        is_first, is_last, moves = Signal(), Signal(), Signal()
        total = Signal(range(REQUEST_DWORDS + MOST_ROWS * BEAT_DWORDS + 1))
        m.d.comb += [
            total.eq(head.dwords + REQUEST_DWORDS),
            is_first.eq(sent == 0),
            is_last.eq((head.rows == 0) | (sent + BEAT_DWORDS >= total)),
            # A packet begins only if its burst's response has a place, so that it never stops in its midst.
            control.i_valid.eq(payloads.r_rdy & (~is_first | (under_way != _ANSWERS))),
            moves.eq(control.i_valid & control.i_ready),
            payloads.r_en.eq(moves & is_last),
            packer.freed.eq(Mux(payloads.r_en, head.rows, 0)),
            memory.read_address.eq(
                (row << _LANE_BITS) + head.dword_address[:_LANE_BITS] + sent - REQUEST_DWORDS
            ),
            memory.read_enable.eq(control.enable),
        ]
        with m.If(moves):
            m.d.sync += sent.eq(Mux(is_last, 0, sent + BEAT_DWORDS))
        m.d.sync += row.eq(row + packer.freed)

        words = Signal(8 * BEAT_BYTES, reset_less=True)
        descriptor = descriptor_of(
            m, RequestType.MEMORY_WRITE, rank1.payload.dword_address, rank1.payload.dwords
        )
        with m.If(control.enable):
            m.d.sync += [
                rank1.payload.eq(head),
                rank1.last_lane.eq(Mux(is_last, total - 1, BEAT_DWORDS - 1)),
                *(rank1.first.eq(is_first), rank1.last.eq(is_last)),
                rank2.eq(rank1),
                words.eq(
                    Cat(
                        Mux(rank1.first, descriptor, memory.read_data[: RQ_DESCRIPTOR.size]),
                        memory.read_data[RQ_DESCRIPTOR.size :],
                    )
                ),
            ]
        beat, is_empty = self.packet.payload, Signal()
        m.d.comb += [
            is_empty.eq(rank2.payload.rows == 0),
            self.packet.valid.eq(control.o_valid & ~is_empty),
            control.o_ready.eq(self.packet.ready | is_empty),
            beat.data.eq(words),
            beat.last_lane.eq(rank2.last_lane),
            *(beat.first_be.eq(rank2.payload.first_be), beat.last_be.eq(rank2.payload.last_be)),
            *(beat.first.eq(rank2.first), beat.last.eq(rank2.last)),
        ]

        # Responses.
        m.submodules.answers = answers = fifo.SyncFIFOBuffered(width=2, depth=_ANSWERS)
        m.d.comb += [
            answers.w_en.eq(control.o_valid & control.o_ready & rank2.last & rank2.payload.last),
            answers.w_data.eq(Cat(rank2.payload.id, rank2.payload.failed)),
            *(bus.bvalid.eq(answers.r_rdy), answers.r_en.eq(bus.bready)),
            bus.bid.eq(answers.r_data[0]),
            bus.bresp.eq(Mux(answers.r_data[1], Response.SLVERR, Response.OKAY)),
        ]
        m.d.sync += under_way.eq(under_way + (payloads.r_en & head.last) - (bus.bvalid & bus.bready))
        return m
