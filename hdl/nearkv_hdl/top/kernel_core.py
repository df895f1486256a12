"""The scoring kernel in the `sync` domain: registers, memory port, scorer, and the course of a job."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.bus.axi import axi_lite, axi_read, axi_write
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS
from nearkv_hdl.bus.control import ControlPort
from nearkv_hdl.bus.crc32c import Crc32c
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.bus.transfer import TransferCode
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.block_dispatch import BlockDispatch
from nearkv_hdl.top.descriptor_fetch import CHUNK, DescriptorFetch
from nearkv_hdl.top.job_check import ALIGN_BYTES, ArgumentCheck, DescriptorCheck
from nearkv_hdl.top.query_feed import QueryFeed
from nearkv_hdl.top.read_port import ReadPort
from nearkv_hdl.top.result_writer import ResultWriter
from nearkv_hdl.top.score_packer import ScorePacker

_KEY_READS = 8  # blocks whose planes are asked for: what a stopped job has still to drain
_LIST_READS = 32  # reads of descriptors and codes whose beats have not been used


def memory_port(bus_bytes: int) -> Signature:
    """AXI4, both directions."""
    return Signature({**axi_read(64, bus_bytes).members, **axi_write(64, bus_bytes).members})


class KernelCore(wiring.Component):
    """Runs the jobs that the register table describes.

    Formula: a job has two passes over its descriptors. The first checks arguments and every descriptor, so
    that a bad one is reported, the first of the list, before a key is read or a result written. The second
    streams: codes and planes are read ahead, scores packed and written, CRCs taken.
    Errors: beside the order in which `nearkv_sim.card` finds them: BUS_ERROR takes the job's end wherever it
    is met; QUERY_CODE and SCORE_OVERFLOW are found while results are written already, and the counters say
    what was moved until then. A failed job, or one that RESET drops, is over when nothing of it is left on
    the bus; a start that comes meanwhile waits for that.
    Timing: keys at a beat per cycle, up to 512 beats (or 32 bursts) of memory latency; before the first key
    two latencies for each pass. CYCLES ends with the last write's acknowledgement.
    Numerics: those of Scorer.
    Reset: all; only together with the bus.

    Args:
        design: the build; its bus is no wider than the alignment of descriptors, codes and results.
        primitives: as of Scorer.

    Members:
        s_axi_control: registers.
        m_axi_gmem: memory.
        interrupt: level.

    Raises ValueError for a wider bus, or as ScorePacker.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        if design.bus_bytes > ALIGN_BYTES:
            raise ValueError(f"bus_bytes is {design.bus_bytes}; allowed: up to {ALIGN_BYTES}")
        self.design = design
        self._control = ControlPort(design)
        self._arguments = ArgumentCheck(design)
        self._fetch = DescriptorFetch(design.bus_bytes)
        self._check = DescriptorCheck(design)
        self._dispatch = BlockDispatch(design)
        self._feed = QueryFeed(design)
        self._scorer = Scorer(design, primitives=primitives)
        self._packer = ScorePacker(design)
        self._key_crc, self._result_crc = Crc32c(design.bus_bytes), Crc32c(design.bus_bytes)
        self._reads = ReadPort(design.bus_bytes)
        self._writer = ResultWriter(design)
        super().__init__(
            {
                "s_axi_control": In(axi_lite(ADDRESS_BITS)),
                "m_axi_gmem": Out(memory_port(design.bus_bytes)),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.control = control = self._control
        m.submodules.arguments = argument_check = self._arguments
        m.submodules.reads = self._reads
        m.submodules.writer = writer = self._writer
        # Between jobs, and between passes, everything of a job is held in reset.
        self._clear = Signal(init=1)
        self._stream_pass, self._drains, self._dropped = Signal(), Signal(), Signal()
        clear, dropped = self._clear, self._dropped
        for name in ("fetch", "check", "dispatch", "feed", "scorer", "packer", "key_crc", "result_crc"):
            m.submodules[name] = ResetInserter(clear)(getattr(self, f"_{name}"))
        wiring.connect(m, wiring.flipped(self.s_axi_control), control.s_axi_control)
        for part in (self._reads, writer):
            for name, member in part.m_axi.signature.members.items():
                ours, theirs = getattr(self.m_axi_gmem, name), getattr(part.m_axi, name)
                sink, source = (ours, theirs) if member.flow is Out else (theirs, ours)
                m.d.comb += Value.cast(sink).eq(source)
        job = control.arguments
        for part in (argument_check, self._fetch, self._check, writer):
            m.d.comb += part.arguments.eq(job)
        m.d.comb += self.interrupt.eq(control.interrupt)

        list_fault, lists_idle = self._connect_lists(m, job)
        key_fault, keys_idle = self._connect_keys(m, job)
        all_scored = self._connect_scores(m, job)
        all_idle = lists_idle & keys_idle & (writer.under_way == 0)

        # What goes wrong under way, the most telling first; a descriptor is judged after its read.
        faults = (list_fault, key_fault, writer.fault, self._dispatch.fault, self._feed.fault)
        fault = Signal(Fault)
        for one in reversed(faults):
            with m.If(one.code != ErrorCode.NONE):
                m.d.comb += fault.eq(one)
        waiting = Signal()
        with m.If(control.start):
            m.d.sync += waiting.eq(1)
        m.d.comb += control.fault.eq(fault)
        with m.FSM() as fsm:
            m.d.comb += [
                writer.restart.eq(fsm.ongoing("IDLE") | fsm.ongoing("SIZES") | fsm.ongoing("ARGUMENTS")),
                clear.eq(~(fsm.ongoing("CHECK") | fsm.ongoing("STREAM"))),
                self._stream_pass.eq(fsm.ongoing("STREAM")),
                self._drains.eq(fsm.ongoing("DRAIN")),
            ]
            with m.State("IDLE"):
                m.d.sync += dropped.eq(0)
                with m.If(control.start | waiting):
                    m.d.sync += [waiting.eq(0), control.streamed_crc32c.eq(0), control.written_crc32c.eq(0)]
                    m.next = "SIZES"
            with m.State("SIZES"):
                m.next = "ARGUMENTS"
            with m.State("ARGUMENTS"):
                m.next = "CHECK"
                with m.If(argument_check.fault.code != ErrorCode.NONE):
                    m.d.comb += [control.fault.eq(argument_check.fault), control.fault_valid.eq(~dropped)]
                    m.d.comb += control.finish.eq(~dropped)
                    m.next = "IDLE"
            with m.State("CHECK"):
                with m.If(dropped):
                    m.next = "DRAIN"
                with m.Elif(fault.code != ErrorCode.NONE):
                    m.d.comb += control.fault_valid.eq(1)
                    m.next = "DRAIN"
                with m.Elif(self._dispatch.all_taken & lists_idle):
                    m.next = "TURN"
            with m.State("TURN"):
                m.next = "STREAM"
            with m.State("STREAM"):
                with m.If(dropped):
                    m.next = "DRAIN"
                with m.Elif(fault.code != ErrorCode.NONE):
                    m.d.comb += control.fault_valid.eq(1)
                    m.next = "DRAIN"
                with m.Elif(all_scored & all_idle & (writer.pending == 0)):
                    m.d.comb += [
                        control.fault.code.eq(ErrorCode.SCORE_OVERFLOW),
                        control.fault_valid.eq(self._scorer.o_overflow),
                        control.finish.eq(1),
                    ]
                    m.next = "IDLE"
            with m.State("DRAIN"):
                with m.If(all_idle & ~self._reads.keys_data.valid & ~self._reads.lists_data.valid):
                    m.d.comb += control.finish.eq(~dropped)
                    m.next = "IDLE"
        with m.If(control.abort):
            m.d.sync += [
                *(dropped.eq(1), waiting.eq(0)),
                *(control.streamed_crc32c.eq(0), control.written_crc32c.eq(0)),
            ]
        bus = self.m_axi_gmem
        writes = bus.wvalid & bus.wready & ~dropped
        m.d.comb += control.add_written_bytes.eq(Mux(writes, self.design.bus_bytes, 0))
        return m

    def _connect_lists(self, m: Module, job: data.View):
        """Reads of descriptors and codes; returns their fault and whether none is under way."""
        fetch, check, dispatch, feed = self._fetch, self._check, self._dispatch, self._feed
        command, window = self._reads.lists_command, self._reads
        tag_layout = data.StructLayout({"is_query": 1, "count": range(CHUNK + 1), "token": 32})
        tags, kinds = self._job_fifo(m, "list_tags", tag_layout), self._job_fifo(m, "list_kinds", 1)
        is_query = Signal()
        asks = Signal()
        tag = data.View(tag_layout, tags.w_data)
        has_room = tags.w_rdy & kinds.w_rdy & ~self._clear
        query_read = dispatch.o_query_read
        m.d.comb += [
            fetch.enable.eq(1),
            is_query.eq(~fetch.o_command.valid),
            command.valid.eq(has_room & (fetch.o_command.valid | query_read.valid)),
            command.payload.eq(Mux(is_query, query_read.payload, fetch.o_command.payload)),
            fetch.o_command.ready.eq(has_room & command.ready),
            query_read.ready.eq(has_room & command.ready & is_query),
            window.lists_window_base.eq(Mux(is_query, job.query_address, job.descriptor_address)),
            window.lists_window_bytes.eq(Mux(is_query, job.query_bytes, job.block_count * ALIGN_BYTES)),
            asks.eq(command.valid & command.ready),
            *(tags.w_en.eq(asks), kinds.w_en.eq(asks), kinds.w_data.eq(is_query)),
            *(tag.is_query.eq(is_query), tag.count.eq(fetch.o_count), tag.token.eq(dispatch.first_token)),
        ]

        # Beats, to whom they were read for.
        beats = self._reads.lists_data
        of_query = kinds.r_data[0]
        m.d.comb += [
            feed.i_data.payload.eq(beats.payload.data),
            fetch.i_data.payload.eq(beats.payload.data),
            feed.i_data.valid.eq(beats.valid & kinds.r_rdy & of_query),
            fetch.i_data.valid.eq(beats.valid & kinds.r_rdy & ~of_query),
            beats.ready.eq(self._drains | (kinds.r_rdy & (~of_query | feed.i_data.ready))),
            kinds.r_en.eq(beats.valid & beats.ready & beats.payload.last),
        ]

        status = self._reads.lists_status
        found = data.View(tag_layout, tags.r_data)
        fault = Signal(Fault)
        refusal = Mux(found.is_query, ErrorCode.QUERY_ADDRESS, ErrorCode.DESCRIPTOR_ADDRESS)
        m.d.comb += [status.ready.eq(1), tags.r_en.eq(status.valid)]
        m.d.comb += [
            fault.address.eq(status.payload.address),
            fault.token.eq(Mux(found.is_query, found.token, 0)),
        ]
        with m.If(status.valid & tags.r_rdy):
            with m.If(status.payload.code == TransferCode.OKAY):
                m.d.comb += fetch.landed.eq(Mux(found.is_query, 0, found.count))
            with m.Elif(status.payload.code == TransferCode.WINDOW):
                m.d.comb += fault.code.eq(refusal)
            with m.Else():
                m.d.comb += fault.code.eq(ErrorCode.BUS_ERROR)

        wiring.connect(m, fetch.o, check.i)
        wiring.connect(m, check.o, dispatch.i)
        wiring.connect(m, dispatch.o_block, feed.i_block)
        wiring.connect(m, feed.o_block, self._scorer.i_block)
        wiring.connect(m, feed.o_query, self._scorer.i_query)
        m.d.comb += [
            *(dispatch.block_count.eq(job.block_count), dispatch.head_dim.eq(job.head_dim)),
            *(dispatch.stream_pass.eq(self._stream_pass), feed.heads.eq(job.heads)),
        ]
        return fault, self._none_under_way(m, "lists", asks, status.valid)

    def _connect_keys(self, m: Module, job: data.View):
        """Key planes to scorer and CRC; returns their fault and whether no read is under way."""
        reads, dispatch, scorer, crc = self._reads, self._dispatch, self._scorer, self._key_crc
        tags = fifo.SyncFIFOBuffered(width=32, depth=_KEY_READS)
        m.submodules.key_tags = ResetInserter(self._clear)(tags)
        command, read = reads.keys_command, dispatch.o_key_read
        asks = Signal()
        m.d.comb += [
            command.valid.eq(read.valid & tags.w_rdy & ~self._clear),
            command.payload.eq(read.payload),
            read.ready.eq(command.ready & tags.w_rdy),
            *(reads.keys_window_base.eq(job.key_address), reads.keys_window_bytes.eq(job.key_bytes)),
            *(asks.eq(command.valid & command.ready), tags.w_en.eq(asks)),
            tags.w_data.eq(dispatch.first_token),
        ]

        beats = reads.keys_data
        blocks = Signal(32)  # whose planes are through
        moves = Signal()
        m.d.comb += [
            scorer.i_keys.payload.data.eq(beats.payload.data),
            scorer.i_keys.payload.last.eq(beats.payload.last),
            scorer.i_keys.valid.eq(beats.valid & crc.i.ready & self._stream_pass),
            crc.i.valid.eq(beats.valid & scorer.i_keys.ready & self._stream_pass),
            crc.i.payload.data.eq(beats.payload.data),
            crc.i.payload.bytes.eq(self.design.bus_bytes),
            crc.i.payload.last.eq(beats.payload.last & (blocks + 1 == job.block_count)),
            moves.eq(beats.valid & scorer.i_keys.ready & crc.i.ready & self._stream_pass),
            beats.ready.eq(self._drains | (scorer.i_keys.ready & crc.i.ready & self._stream_pass)),
            self._control.add_streamed_bytes.eq(Mux(moves & ~self._dropped, self.design.bus_bytes, 0)),
        ]
        with m.If(moves & beats.payload.last):
            m.d.sync += blocks.eq(blocks + 1)
        with m.If(self._clear):
            m.d.sync += blocks.eq(0)

        status = reads.keys_status
        fault = Signal(Fault)
        refused = status.payload.code == TransferCode.WINDOW
        m.d.comb += [
            *(status.ready.eq(1), tags.r_en.eq(status.valid)),
            *(fault.address.eq(status.payload.address), fault.token.eq(tags.r_data)),
        ]
        with m.If(status.valid & tags.r_rdy & (status.payload.code != TransferCode.OKAY)):
            m.d.comb += fault.code.eq(Mux(refused, ErrorCode.KEY_ADDRESS, ErrorCode.BUS_ERROR))
        return fault, self._none_under_way(m, "keys", asks, status.valid)

    def _connect_scores(self, m: Module, job: data.View):
        """Scores to memory and CRC; returns whether the last one, and the last key, are accounted for."""
        scorer, packer, crc, writer, control = (
            *(self._scorer, self._packer, self._result_crc, self._writer, self._control),
        )
        wiring.connect(m, scorer.o_scores, packer.i)
        counts = scorer.o_scores.valid & scorer.o_scores.ready & self._stream_pass & ~self._dropped
        beats = packer.o
        m.d.comb += [
            packer.heads.eq(job.heads),
            control.add_tokens.eq(counts),
            writer.enable.eq(self._stream_pass),
            writer.i.payload.eq(beats.payload),
            writer.i.valid.eq(beats.valid & crc.i.ready & self._stream_pass),
            crc.i.valid.eq(beats.valid & writer.i.ready & self._stream_pass),
            crc.i.payload.data.eq(beats.payload.data),
            crc.i.payload.bytes.eq(self.design.bus_bytes),
            crc.i.payload.last.eq(beats.payload.last),
            beats.ready.eq(writer.i.ready & crc.i.ready & self._stream_pass),
        ]
        known = Signal(2)
        crcs = ((self._key_crc, control.streamed_crc32c), (crc, control.written_crc32c))
        for index, (unit, register) in enumerate(crcs):
            m.d.comb += unit.o.ready.eq(1)
            with m.If(unit.o.valid & self._stream_pass & ~self._dropped):
                m.d.sync += [register.eq(unit.o.payload), known[index].eq(1)]
        with m.If(self._clear):
            m.d.sync += known.eq(0)
        return known.all()

    def _job_fifo(self, m: Module, name: str, shape):
        queue = fifo.SyncFIFOBuffered(width=getattr(shape, "size", shape), depth=_LIST_READS)
        m.submodules[name] = ResetInserter(self._clear)(queue)
        return queue

    @staticmethod
    def _none_under_way(m: Module, name: str, asks, ends):
        """Whether every read that was asked for has given its status; outlives the job."""
        count = Signal(range(2 * _LIST_READS), name=f"{name}_under_way")
        m.d.sync += count.eq(count + asks - ends)
        return count == 0
