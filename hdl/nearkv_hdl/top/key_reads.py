"""Key planes from the reader to the scorer, counted."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.bus.axi_reader import read_beat_layout
from nearkv_hdl.bus.crc32c import CRC_BITS, Crc32c
from nearkv_hdl.bus.job_control import Fault, tokens_of_block
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.registers import ErrorCode

_READS = 8  # blocks whose planes are asked for: what a stopped job has still to drain


class KeyReads(wiring.Component):
    """Asks for planes a few blocks ahead, passes their beats on and takes the CRC of each.

    Formula: one read per block; CRC32C over the beats of a plane.
    Errors: SLVERR and DECERR are BUS_ERROR with the address of the beat and the block's tokens. A refused
    read is KEY_ADDRESS; checked jobs have none.
    Timing: a beat per cycle, nothing added; a CRC that nobody takes stops them.
    Numerics: none.
    Reset: all; `clear` does the same to all but the count of reads under way.

    Args:
        design: bus, head dimensions, tokens of a block.

    Members:
        head_dim: of the job, stable.
        clear: between jobs: asks for nothing, passes nothing on.
        drains: takes what still comes, and drops it.
        read, first_token: reads.
        command, beats, status: the reader.
        o_keys: as Scorer takes them.
        moves: a beat is taken by the scorer.
        o_crc: of each plane.
        fault: what a read met, for a cycle, otherwise code NONE.
        idle: no read is under way.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._crc = Crc32c(design.bus_bytes)
        command = stream.Signature(command_layout(64, 32))
        super().__init__(
            {
                "head_dim": In(32),
                "clear": In(1),
                "drains": In(1),
                "read": In(command),
                "first_token": In(32),
                "command": Out(command),
                "beats": In(stream.Signature(read_beat_layout(design.bus_bytes))),
                "status": In(stream.Signature(status_layout(64), always_ready=True)),
                "o_keys": Out(stream.Signature(key_layout(design))),
                "moves": Out(1),
                "o_crc": Out(stream.Signature(CRC_BITS)),
                "fault": Out(Fault),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        crc = self._crc
        tags = fifo.SyncFIFOBuffered(width=32, depth=_READS)
        emptied = ResetInserter(self.clear)
        m.submodules.crc, m.submodules.tags = emptied(crc), emptied(tags)
        asks = Signal()
        m.d.comb += [
            self.command.valid.eq(self.read.valid & tags.w_rdy & ~self.clear),
            self.command.payload.eq(self.read.payload),
            self.read.ready.eq(self.command.ready & tags.w_rdy & ~self.clear),
            asks.eq(self.command.valid & self.command.ready),
            tags.w_en.eq(asks),
            tags.w_data.eq(self.first_token),
        ]

        # Scorer and CRC take a beat together.
        beats = self.beats
        place = Signal(range(self.design.plane_rows))  # within a plane
        last_place = Signal.like(place)
        for head_dim in self.design.head_dims:
            with m.If(self.head_dim == head_dim):
                m.d.comb += last_place.eq(self.design.plane_beats(head_dim) - 1)
        both = self.o_keys.ready & crc.i.ready & ~self.clear
        m.d.comb += [
            self.o_keys.payload.data.eq(beats.payload.data),
            self.o_keys.payload.last.eq(beats.payload.last),
            self.o_keys.valid.eq(beats.valid & crc.i.ready & ~self.clear),
            crc.i.payload.data.eq(beats.payload.data),
            crc.i.payload.bytes.eq(self.design.bus_bytes),
            crc.i.payload.last.eq(place == last_place),
            crc.i.valid.eq(self.moves),
            self.moves.eq(beats.valid & both),
            beats.ready.eq(self.drains | both),
            self.o_crc.valid.eq(crc.o.valid),
            self.o_crc.payload.eq(crc.o.payload),
            crc.o.ready.eq(self.o_crc.ready),
        ]
        with m.If(self.clear):
            m.d.sync += place.eq(0)
        with m.Elif(self.moves):
            m.d.sync += place.eq(Mux(place == last_place, 0, place + 1))

        status = self.status.payload
        refused = status.code == TransferCode.WINDOW
        m.d.comb += [
            tags.r_en.eq(self.status.valid),
            self.fault.address.eq(status.address),
            self.fault.token.eq(tags.r_data),
            self.fault.tokens.eq(tokens_of_block(self.fault, self.design.block_tokens)),
        ]
        with m.If(self.status.valid & tags.r_rdy & (status.code != TransferCode.OKAY)):
            m.d.comb += self.fault.code.eq(Mux(refused, ErrorCode.KEY_ADDRESS, ErrorCode.BUS_ERROR))

        under_way = Signal(range(2 * _READS))
        m.d.sync += under_way.eq(under_way + asks - self.status.valid)
        m.d.comb += self.idle.eq(under_way == 0)
        return m
