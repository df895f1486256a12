"""The requester: AXI4 on one side, memory requests over PCIe on the other."""

from __future__ import annotations

from amaranth.hdl import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.bus.axi import axi_read, axi_write
from nearkv_hdl.pcie.formats import BEAT_BYTES, RC_USER, RQ_USER, packet_stream
from nearkv_hdl.pcie.read_requester import ReadRequester
from nearkv_hdl.pcie.request_arbiter import RequestArbiter
from nearkv_hdl.pcie.write_requester import WriteRequester

COUNTER_BITS = 32


class MemoryRequester(wiring.Component):
    """Host memory as an AXI4 subordinate, behind the integrated block's RQ and RC interfaces.

    Formula: a burst's addresses are PCIe addresses. Reads as ReadRequester, writes as WriteRequester, both on
    RQ as RequestArbiter. A read whose address is taken after a write's response is requested behind that
    write's packets, which it cannot pass (PCI Express Base Specification 3.1, table 2-39).
    Errors: SLVERR, see ReadRequester and WriteRequester; a burst that is not INCR, not of whole 64-byte
    beats, or crosses a page is refused, and so is every burst taken without `bus_master_enable`.
    Timing: latency 3 from `arvalid` to `rq.tvalid`, 4 from a request's last completion beat to `rvalid`;
    6 from a payload's last beat on W to its packet, 2 from a burst's last packet to `bvalid`; interval 1 on
    every channel.
    Numerics: counters modulo 2^32.
    Cuts: see the parts: RQ has the arbiter's gates behind its registers, R none.
    Reset: all; only together with the bus and the integrated block.

    Args:
        tags, completion_headers, completion_bytes, time_bits: see ReadRequester.

    Members:
        s_axi: as `nearkv_hdl.top.kernel_core.memory_port` of 64 bytes, seen from the manager.
        rq, rc: interfaces of the integrated block.
        cfg_max_payload, cfg_max_read_req: as the integrated block gives them (PG213, Configuration Status).
        cfg_rcb_128: the read completion boundary is 128 bytes (`cfg_rcb_status` of the function).
        bus_master_enable: bit 2 of `cfg_function_status`.
        extended_tags: Extended Tag Field Enable of the function's Device Control register.
        timeout_cycles, quarantine_cycles: see TagPool; constant while reads are outstanding.
        tags_free, credits_free, headers_free: what is left, see ReadRequester.
        timeouts, unexpected_completions, late_completions: numbers.

    Raises ValueError as ReadRequester.

    """

    def __init__(
        self,
        tags: int = 256,
        completion_headers: int = 128,
        completion_bytes: int = 32768,
        time_bits: int = 32,
    ) -> None:
        self._reads = ReadRequester(tags, completion_headers, completion_bytes, time_bits)
        self._writes = WriteRequester()
        self._arbiter = RequestArbiter(tags)
        super().__init__(
            {
                "s_axi": In(
                    Signature({**axi_read(64, BEAT_BYTES).members, **axi_write(64, BEAT_BYTES).members})
                ),
                "rq": Out(packet_stream(RQ_USER)),
                "rc": In(packet_stream(RC_USER)),
                "cfg_max_payload": In(2),
                "cfg_max_read_req": In(3),
                "cfg_rcb_128": In(1),
                "bus_master_enable": In(1),
                "extended_tags": In(1),
                "timeout_cycles": In(time_bits - 2),
                "quarantine_cycles": In(time_bits - 2),
                "tags_free": Out(range(tags + 1)),
                "credits_free": Out(range(self._reads.credits + 1)),
                "headers_free": Out(range(completion_headers + 1)),
                "timeouts": Out(COUNTER_BITS),
                "unexpected_completions": Out(COUNTER_BITS),
                "late_completions": Out(COUNTER_BITS),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a read's address to its first request."""
        return self._reads.latency + self._arbiter.latency

    @property
    def answer_latency(self) -> int:
        """Cycles from a request's last completion beat to its first beat on R, if it is the oldest."""
        return self._reads.answer_latency

    @property
    def write_latency(self) -> int:
        """Cycles from a payload's last beat on W to its packet's first."""
        return self._writes.latency + self._arbiter.latency

    @property
    def response_latency(self) -> int:
        """Cycles from the last beat of a burst's last packet on RQ to `bvalid`."""
        return self._writes.response_latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.reads = reads = self._reads
        m.submodules.writes = writes = self._writes
        m.submodules.arbiter = arbiter = self._arbiter
        for part in (reads, writes):
            for name, member in part.s_axi.signature.members.items():
                ours, theirs = Value.cast(getattr(self.s_axi, name)), Value.cast(getattr(part.s_axi, name))
                m.d.comb += theirs.eq(ours) if member.flow is In else ours.eq(theirs)
        wiring.connect(m, reads.request, arbiter.request)
        wiring.connect(m, writes.packet, arbiter.packet)
        wiring.connect(m, arbiter.rq, wiring.flipped(self.rq))
        wiring.connect(m, wiring.flipped(self.rc), reads.rc)
        m.d.comb += [
            reads.max_read.eq(self.cfg_max_read_req),
            reads.boundary_128.eq(self.cfg_rcb_128),
            writes.max_payload.eq(self.cfg_max_payload),
            *(part.bus_master_enable.eq(self.bus_master_enable) for part in (reads, writes)),
            reads.extended_tags.eq(self.extended_tags),
            reads.timeout_cycles.eq(self.timeout_cycles),
            reads.quarantine_cycles.eq(self.quarantine_cycles),
            self.tags_free.eq(reads.tags_free),
            self.credits_free.eq(reads.credits_free),
            self.headers_free.eq(reads.headers_free),
        ]
        for event, counter in (
            (reads.times_out, self.timeouts),
            (reads.unexpected, self.unexpected_completions),
            (reads.dropped_late, self.late_completions),
        ):
            m.d.sync += counter.eq(counter + event)
        return m
