"""The scoring kernel in the `sync` domain: registers, memory port, scorer, and the course of a job."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.bus.axi import axi_lite, axi_read, axi_write
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS
from nearkv_hdl.bus.control import ControlPort
from nearkv_hdl.bus.crc32c import Crc32c
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.block_dispatch import BlockDispatch
from nearkv_hdl.top.descriptor_fetch import DescriptorFetch
from nearkv_hdl.top.job_check import ALIGN_BYTES, ArgumentCheck, DescriptorCheck
from nearkv_hdl.top.key_reads import KeyReads
from nearkv_hdl.top.list_reads import ListReads
from nearkv_hdl.top.query_feed import QueryFeed
from nearkv_hdl.top.read_port import ReadPort
from nearkv_hdl.top.result_writer import ResultWriter
from nearkv_hdl.top.score_packer import ScorePacker


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
        self._result_crc = Crc32c(design.bus_bytes)
        self._lists, self._keys = ListReads(design.bus_bytes), KeyReads(design)
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
        m.submodules.lists = lists = self._lists
        m.submodules.keys = keys = self._keys
        m.submodules.writer = writer = self._writer
        # Between jobs, and between passes, everything of a job is held in reset.
        self._clear = Signal(init=1)
        self._stream_pass, self._drains, self._dropped = Signal(), Signal(), Signal()
        clear, dropped = self._clear, self._dropped
        for name in ("fetch", "check", "dispatch", "feed", "scorer", "packer", "result_crc"):
            m.submodules[name] = ResetInserter(clear)(getattr(self, f"_{name}"))
        wiring.connect(m, wiring.flipped(self.s_axi_control), control.s_axi_control)
        for part in (self._reads, writer):
            for name, member in part.m_axi.signature.members.items():
                ours, theirs = getattr(self.m_axi_gmem, name), getattr(part.m_axi, name)
                sink, source = (ours, theirs) if member.flow is Out else (theirs, ours)
                m.d.comb += Value.cast(sink).eq(source)
        job = control.arguments
        for part in (argument_check, lists, self._fetch, self._check, writer):
            m.d.comb += part.arguments.eq(job)
        m.d.comb += self.interrupt.eq(control.interrupt)

        self._connect_reads(m, job)
        all_scored = self._connect_scores(m, job)
        all_idle = lists.idle & keys.idle & (writer.under_way == 0)

        # What goes wrong under way, the most telling first; a descriptor is judged after its read.
        faults = (lists.fault, keys.fault, writer.fault, self._dispatch.fault, self._feed.fault)
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
                with m.Elif(self._dispatch.all_taken & lists.idle):
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
            with m.State("DRAIN"), m.If(all_idle & ~lists.beats.valid & ~keys.beats.valid):
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

    def _connect_reads(self, m: Module, job: data.View) -> None:
        """Descriptors, codes and planes: from the memory to check, scorer and CRC."""
        fetch, check, dispatch, feed = self._fetch, self._check, self._dispatch, self._feed
        port, lists, keys, scorer = self._reads, self._lists, self._keys, self._scorer
        for which, reads in (("lists", lists), ("keys", keys)):
            wiring.connect(m, reads.command, getattr(port, f"{which}_command"))
            wiring.connect(m, getattr(port, f"{which}_data"), reads.beats)
            wiring.connect(m, getattr(port, f"{which}_status"), reads.status)
            m.d.comb += [
                reads.clear.eq(self._clear),
                reads.drains.eq(self._drains),
                reads.first_token.eq(dispatch.first_token),
            ]
        wiring.connect(m, fetch.o_command, lists.descriptor_read)
        wiring.connect(m, lists.o_descriptors, fetch.i_data)
        wiring.connect(m, fetch.o, check.i)
        wiring.connect(m, check.o, dispatch.i)
        wiring.connect(m, dispatch.o_query_read, lists.query_read)
        wiring.connect(m, dispatch.o_key_read, keys.read)
        wiring.connect(m, dispatch.o_block, feed.i_block)
        wiring.connect(m, lists.o_queries, feed.i_data)
        wiring.connect(m, feed.o_block, scorer.i_block)
        wiring.connect(m, feed.o_query, scorer.i_query)
        wiring.connect(m, keys.o_keys, scorer.i_keys)
        m.d.comb += [
            lists.descriptor_count.eq(fetch.o_count),
            fetch.landed.eq(lists.landed),
            port.lists_window_base.eq(lists.window_base),
            port.lists_window_bytes.eq(lists.window_bytes),
            port.keys_window_base.eq(job.key_address),
            port.keys_window_bytes.eq(job.key_bytes),
            keys.block_count.eq(job.block_count),
            dispatch.block_count.eq(job.block_count),
            dispatch.head_dim.eq(job.head_dim),
            dispatch.stream_pass.eq(self._stream_pass),
            feed.heads.eq(job.heads),
            self._control.add_streamed_bytes.eq(Mux(keys.moves & ~self._dropped, self.design.bus_bytes, 0)),
        ]

    def _connect_scores(self, m: Module, job: data.View):
        """Scores to memory and CRC; returns whether the last one, and the last key, are accounted for."""
        scorer, packer, crc = self._scorer, self._packer, self._result_crc
        writer, control = self._writer, self._control
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
        m.d.comb += crc.o.ready.eq(1)
        crcs = ((self._keys.o_crc, control.streamed_crc32c), (crc.o, control.written_crc32c))
        for index, (source, register) in enumerate(crcs):
            with m.If(source.valid & self._stream_pass & ~self._dropped):
                m.d.sync += [register.eq(source.payload), known[index].eq(1)]
        with m.If(self._clear):
            m.d.sync += known.eq(0)
        return known.all()
