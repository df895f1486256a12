"""The scoring kernel in the `sync` domain: registers, memory port, scorer, and the course of a job."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.bus.axi import axi_lite, axi_read, axi_write
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS
from nearkv_hdl.bus.control import ControlPort
from nearkv_hdl.bus.crc32c import Crc32c
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.argument_check import ArgumentCheck
from nearkv_hdl.top.job_check import ALIGN_BYTES
from nearkv_hdl.top.job_reads import JobReads
from nearkv_hdl.top.result_writer import ResultWriter
from nearkv_hdl.top.score_packer import ScorePacker, packed_layout
from nearkv_hdl.top.selections import Selections


def memory_port(bus_bytes: int) -> Signature:
    """AXI4, both directions."""
    return Signature({**axi_read(64, bus_bytes).members, **axi_write(64, bus_bytes).members})


class KernelCore(wiring.Component):
    """Runs the jobs that the register table describes.

    Formula: a job has two passes over its descriptors. The first checks arguments and every descriptor, so
    that a bad one is reported, the first of the list, before a key is read or a result written. The second
    streams: headers, codes and planes are read ahead, planes compared with the CRCs of their headers, scores
    packed and written.
    Errors: beside the order in which `nearkv_sim.card` finds them: BUS_ERROR takes the job's end wherever it
    is met; HEADER_CRC, HEADER_IDENTITY, QUERY_CODE, KEY_CRC and SCORE_OVERFLOW are found while results are
    written already, and the counters say what was moved until then. A failed job, or one that RESET drops, is
    over when nothing of it is left on the bus; a start that comes meanwhile waits for that.
    Timing: keys at a beat per cycle, up to 512 beats (or 32 bursts) of memory latency; before the first key
    two latencies for each pass. Where one port has less, several key masters share the work, if the blocks
    of a job lie in banks of all (`DesignConfig.key_master`). CYCLES ends with the last write's
    acknowledgement.
    Numerics: those of Scorer.
    Reset: all; only together with the bus.

    Args:
        design: the build; its bus is no wider than the alignment of descriptors, codes and results.
        primitives: as of Scorer.

    Members:
        s_axi_control: registers.
        m_axi_gmem: memory: all lists and results, and planes.
        m_axi_gmem{i}: planes that key master i reads, from 1; read-only.
        interrupt: level.

    Raises ValueError for a wider bus, or as ScorePacker.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        if design.bus_bytes > ALIGN_BYTES:
            raise ValueError(f"bus_bytes is {design.bus_bytes}; allowed: up to {ALIGN_BYTES}")
        self.design = design
        self._control = ControlPort(design)
        self._arguments = ArgumentCheck(design)
        self._reads = JobReads(design)
        self._scorer = Scorer(design, primitives=primitives)
        self._packer = ScorePacker(design)
        self._selections = Selections(design) if design.topk else None
        self._result_crc = Crc32c(design.bus_bytes)
        self._writer = ResultWriter(design)
        self._extra_masters = range(1, design.key_masters)
        super().__init__(
            {
                "s_axi_control": In(axi_lite(ADDRESS_BITS)),
                "m_axi_gmem": Out(memory_port(design.bus_bytes)),
                **{f"m_axi_gmem{i}": Out(axi_read(64, design.bus_bytes)) for i in self._extra_masters},
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.control = control = self._control
        m.submodules.arguments = argument_check = self._arguments
        m.submodules.reads = reads = self._reads
        m.submodules.writer = writer = self._writer
        # Between jobs, and between passes, everything of a job is held in reset.
        self._clear = Signal(init=1)
        self._stream_pass, self._drains, self._dropped = Signal(), Signal(), Signal()
        clear, dropped = self._clear, self._dropped
        for name in ("scorer", "packer", "result_crc"):
            m.submodules[name] = ResetInserter(clear)(getattr(self, f"_{name}"))
        wiring.connect(m, wiring.flipped(self.s_axi_control), control.s_axi_control)
        for part in (reads, writer):
            for name, member in part.m_axi.signature.members.items():
                ours, theirs = getattr(self.m_axi_gmem, name), getattr(part.m_axi, name)
                sink, source = (ours, theirs) if member.flow is Out else (theirs, ours)
                m.d.comb += Value.cast(sink).eq(source)
        for i in self._extra_masters:
            wiring.connect(m, getattr(reads, f"m_axi{i}"), wiring.flipped(getattr(self, f"m_axi_gmem{i}")))
        job = control.arguments
        for part in (argument_check, reads, writer):
            m.d.comb += part.arguments.eq(job)
        m.d.comb += self.interrupt.eq(control.interrupt)

        self._connect_reads(m)
        all_scored = self._connect_scores(m, job)
        all_idle = reads.idle & (writer.under_way == 0)

        # What goes wrong under way.
        fault = Signal(Fault)
        for one in (writer.fault, reads.fault):
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
                reads.drains.eq(self._drains),
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
                with m.Elif(reads.all_taken & reads.list_idle):
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
            with m.State("DRAIN"), m.If(all_idle & reads.quiet):
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

    def _connect_reads(self, m: Module) -> None:
        """What is read goes to the scorer, and is counted."""
        reads, scorer, control = self._reads, self._scorer, self._control
        wiring.connect(m, reads.o_block, scorer.i_block)
        wiring.connect(m, reads.o_query, scorer.i_query)
        wiring.connect(m, reads.o_keys, scorer.i_keys)
        m.d.comb += [
            reads.clear.eq(self._clear),
            reads.stream_pass.eq(self._stream_pass),
            control.add_input_stalls.eq(reads.key_waits & ~self._dropped),
            control.add_streamed_bytes.eq(Mux(reads.key_moves & ~self._dropped, self.design.bus_bytes, 0)),
        ]
        with m.If(reads.all_good & self._stream_pass & ~self._dropped):
            m.d.sync += control.streamed_crc32c.eq(reads.o_crc)

    def _connect_scores(self, m: Module, job: data.View):
        """Scores to memory and CRC; returns whether the last one, and the last key, are accounted for."""
        scorer, packer, crc = self._scorer, self._packer, self._result_crc
        writer, control = self._writer, self._control
        scores, beats = scorer.o_scores, packer.o
        if self._selections is None:
            wiring.connect(m, scores, packer.i)
        else:
            beats = self._choose(m, job)
        runs = self._stream_pass & ~self._dropped
        m.d.comb += [
            packer.heads.eq(job.heads),
            control.add_tokens.eq(scores.valid & scores.ready & runs),
            control.add_output_stalls.eq(scores.valid & ~scores.ready & runs),
            writer.enable.eq(self._stream_pass),
            writer.i.payload.eq(beats.payload),
            writer.i.valid.eq(beats.valid & crc.i.ready & self._stream_pass),
            crc.i.valid.eq(beats.valid & writer.i.ready & self._stream_pass),
            crc.i.payload.data.eq(beats.payload.data),
            crc.i.payload.bytes.eq(self.design.bus_bytes),
            crc.i.payload.last.eq(beats.payload.last),
            beats.ready.eq(writer.i.ready & crc.i.ready & self._stream_pass),
        ]
        is_known = Signal()
        m.d.comb += crc.o.ready.eq(1)
        with m.If(crc.o.valid & self._stream_pass & ~self._dropped):
            m.d.sync += [control.written_crc32c.eq(crc.o.payload), is_known.eq(1)]
        with m.If(self._clear):
            m.d.sync += is_known.eq(0)
        return is_known & self._reads.all_good

    def _choose(self, m: Module, job: data.View):
        """Scores go to the packer or to the top-k units; returns the beats of whichever it is."""
        packer, scores = self._packer, self._scorer.o_scores
        # What a job leaves half done takes hundreds of cycles to clear, which a whole one does not need.
        selections = self._selections
        m.submodules.selections = ResetInserter(self._drains)(selections)
        beats = stream.Signature(packed_layout(self.design.bus_bytes)).create()
        is_selection = job.flags.top_k
        m.d.comb += [
            selections.enable.eq(self._stream_pass & is_selection),
            selections.heads.eq(job.heads),
            selections.k.eq(job.k),
            packer.i.valid.eq(scores.valid & ~is_selection),
            packer.i.payload.eq(scores.payload),
            selections.i.valid.eq(scores.valid & is_selection),
            selections.i.payload.eq(scores.payload),
            scores.ready.eq(Mux(is_selection, selections.i.ready, packer.i.ready)),
            beats.valid.eq(Mux(is_selection, selections.o.valid, packer.o.valid)),
            beats.payload.eq(Mux(is_selection, selections.o.payload, packer.o.payload)),
            packer.o.ready.eq(beats.ready & ~is_selection),
            selections.o.ready.eq(beats.ready & is_selection),
        ]
        return beats
