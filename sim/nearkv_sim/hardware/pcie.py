"""One PCIe link between a root complex and one device, packet by packet, in integer picoseconds.

Sources: PCI Express Base Specification 5.0 (framing, splitting rules, DLLP windows); Neugebauer et al.,
"Understanding PCIe performance for end host networking" (pcie-bench), SIGCOMM 2018 (method).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nearkv_sim.hardware.pcie_config import PRESETS, PcieLinkConfig, require_integer
from nearkv_sim.hardware.pcie_credits import CreditConfig, CreditGate, TlpKind
from nearkv_sim.hardware.pcie_latency import TailSampler
from nearkv_sim.hardware.pcie_tlp import (
    CPU_LINE_BYTES,
    DLLP_BYTES,
    HEADER_32_BIT_BYTES,
    HEADER_64_BIT_BYTES,
    MSI_ADDRESS,
    MSI_BYTES,
    TLP_FRAMING_BYTES,
    SentTlp,
    padded_bytes,
    request_overhead_bytes,
    split_completion,
    split_request,
)

__all__ = [
    "HEADER_32_BIT_BYTES",
    "HEADER_64_BIT_BYTES",
    "PRESETS",
    "TLP_FRAMING_BYTES",
    "PcieLink",
    "PcieLinkConfig",
    "WireCounters",
]


@dataclass
class WireCounters:
    """What one direction has carried. `wire_bytes` is all of it: headers, framing, padding and DLLPs."""

    tlps: int = 0
    payload_bytes: int = 0
    dllps: int = 0
    wire_bytes: int = 0


class _Wire:
    """One direction: when it is free, and the Ack and UpdateFC it owes for TLPs of the other direction."""

    def __init__(self, credits: CreditConfig | None) -> None:
        self.free_ticks = 0
        self.busy_from_ticks = self.busy_bytes = 0  # TLPs since the last gap between them
        self.gate = CreditGate(credits) if credits else None  # of the far side's receive buffers
        self.dllps_due_ticks = -1  # also the end of the reception window that they cover
        self.dllps_pending = False
        self.counters = WireCounters()

    def send_dllps(self) -> None:
        self.dllps_pending = False
        self.counters.dllps += 2
        self.counters.wire_bytes += 2 * DLLP_BYTES


class PcieLink:
    """A full-duplex link. Each method takes a start in ps and returns the completion in ps.

    Calls are served whole, in call order: a wire never goes back to a gap before its last packet. To let two
    streams share the link, issue them in pieces in the order of their start times. Time is kept in exact
    fractions of a picosecond; only returned values are rounded, up. There is no randomness.

    Each direction is a wire that carries one packet at a time. A received TLP opens a window; when it ends,
    one Ack and one UpdateFC for all TLPs received in it go out on the opposite wire, between TLPs. The window
    is in symbol times, as in the Base Spec; the pcie-bench model takes the same numbers as bytes, which makes
    it more pessimistic by the number of lanes.

    Receive buffers are unlimited unless `credits` are given: then a TLP also waits for its credits, which
    come back one UpdateFC window and one way after the receiver has drained it. With `tail` every DMA read
    takes that much longer in the root complex; completions keep the order of their requests, so a late one
    holds up those behind it.

    All methods raise ValueError for a negative or non-integer start, for a length below 1 and for addresses
    beyond 64 bits. `upstream` (device to host) and `downstream` count what was sent; `observer` is called
    with every TLP.
    """

    def __init__(
        self,
        config: PcieLinkConfig,
        *,
        credits: CreditConfig | None = None,
        tail: TailSampler | None = None,
        observer: Callable[[SentTlp], None] | None = None,
    ) -> None:
        """Start at time 0 with idle wires and every tag free. ValueError for credits below a full TLP."""
        if credits:
            credits.require_room_for(config.max_payload_bytes)
        self.config, self._tail, self._observer = config, tail, observer
        byte_time_ps = config.byte_time_ps
        self._ticks_per_ps = byte_time_ps.denominator
        self._byte_ticks = byte_time_ps.numerator
        self._dllps_ticks = 2 * DLLP_BYTES * self._byte_ticks
        self._interval_ticks = config.dllp_interval_symbols * config.lanes * self._byte_ticks
        self._one_way_ticks = config.path_latency_ps * self._ticks_per_ps
        drain_ticks = credits.drain_ps * self._ticks_per_ps if credits else 0
        self._credit_ticks = drain_ticks + self._interval_ticks + self._one_way_ticks
        self._up, self._down = _Wire(credits), _Wire(credits)
        # Completions arrive in request order, so the tag to wait for is always the oldest.
        self._tag_free_ticks = deque([0] * config.tags)
        self.upstream, self.downstream = self._up.counters, self._down.counters

    def device_write(self, start_ps: int, address: int, nbytes: int) -> int:
        """Device writes host memory (posted). Returns when the last byte is visible to the host."""
        ready_ticks = self._start_ticks(start_ps, address, nbytes)
        arrival_ticks = ready_ticks
        for at, size in split_request(address, nbytes, self.config.max_payload_bytes):
            overhead_bytes = request_overhead_bytes(at)
            arrival_ticks = self._send(
                self._up, self._down, TlpKind.POSTED, ready_ticks, overhead_bytes, at, size
            )
        return self._to_ps(arrival_ticks)

    def device_read(self, start_ps: int, address: int, nbytes: int) -> int:
        """Device reads host memory. Returns when the last completion has arrived at the device."""
        start_ticks = self._start_ticks(start_ps, address, nbytes)
        turnaround_ticks = self.config.root_complex_read_latency_ps * self._ticks_per_ps
        tag_free_ticks = self._tag_free_ticks
        arrival_ticks = start_ticks
        for at, size in split_request(address, nbytes, self.config.max_read_request_bytes):
            issue_ticks = max(start_ticks, tag_free_ticks.popleft())
            request_ticks = self._send(
                self._up, self._down, TlpKind.NON_POSTED, issue_ticks, request_overhead_bytes(at), at
            )
            answer_ticks = request_ticks + turnaround_ticks
            if self._tail:
                answer_ticks += self._tail.draw_ps() * self._ticks_per_ps
            arrival_ticks = self._complete(self._down, self._up, answer_ticks, at, size)
            tag_free_ticks.append(arrival_ticks)
        return self._to_ps(arrival_ticks)

    def mmio_write(self, start_ps: int, address: int, nbytes: int) -> int:
        """CPU stores into the device (posted), within one aligned 64-byte line or ValueError.

        Returns when the device has it.
        """
        ready_ticks = self._start_ticks(start_ps, address, nbytes)
        self._require_one_line(address, nbytes)
        overhead_bytes = request_overhead_bytes(address)
        return self._to_ps(
            self._send(self._down, self._up, TlpKind.POSTED, ready_ticks, overhead_bytes, address, nbytes)
        )

    def mmio_read(self, start_ps: int, address: int, nbytes: int) -> int:
        """CPU loads from the device, within one aligned 64-byte line or ValueError.

        Returns when the CPU has the data. CPU loads do not use the device's tags.
        """
        ready_ticks = self._start_ticks(start_ps, address, nbytes)
        self._require_one_line(address, nbytes)
        overhead_bytes = request_overhead_bytes(address)
        ready_ticks = self._send(
            self._down, self._up, TlpKind.NON_POSTED, ready_ticks, overhead_bytes, address
        )
        ready_ticks += self.config.mmio_turnaround_latency_ps * self._ticks_per_ps
        return self._to_ps(self._complete(self._up, self._down, ready_ticks, address, nbytes))

    def interrupt(self, start_ps: int) -> int:
        """Device raises MSI-X, behind every write it has issued. Returns when the handler starts."""
        handled_ps = self.device_write(start_ps, MSI_ADDRESS, MSI_BYTES)
        return handled_ps + self.config.interrupt_latency_ps

    def _complete(self, wire: _Wire, opposite: _Wire, ready_ticks: int, address: int, nbytes: int) -> int:
        """Answer one read request; returns the arrival of its last completion, in ticks."""
        config = self.config
        limit_bytes, boundary_bytes = config.max_payload_bytes, config.read_completion_boundary_bytes
        overhead_bytes = TLP_FRAMING_BYTES + HEADER_32_BIT_BYTES
        arrival_ticks = ready_ticks
        for at, size in split_completion(address, nbytes, limit_bytes, boundary_bytes):
            arrival_ticks = self._send(
                wire, opposite, TlpKind.COMPLETION, ready_ticks, overhead_bytes, at, size
            )
        return arrival_ticks

    def _send(
        self,
        wire: _Wire,
        opposite: _Wire,
        kind: TlpKind,
        ready_ticks: int,
        overhead_bytes: int,
        address: int,
        nbytes: int = 0,
    ) -> int:
        """Send a TLP once it and the wire are ready; returns its arrival at the far side, in ticks."""
        if wire.gate:
            credited_ticks = wire.gate.ready_at(kind, nbytes, max(ready_ticks, wire.free_ticks))
            assert credited_ticks is not None, "every credit's return is known when its TLP is sent"
            ready_ticks = credited_ticks
            wire.gate.take(kind, nbytes, ready_ticks)
        begin_ticks = max(ready_ticks, wire.free_ticks)
        if wire.dllps_pending and wire.dllps_due_ticks <= begin_ticks:
            begin_ticks = max(begin_ticks, max(wire.dllps_due_ticks, wire.free_ticks) + self._dllps_ticks)
            wire.send_dllps()
        wire_bytes = overhead_bytes + (padded_bytes(address, nbytes) if nbytes else 0)
        if begin_ticks > wire.free_ticks:
            wire.busy_from_ticks, wire.busy_bytes = begin_ticks, 0
        wire.busy_bytes += wire_bytes
        wire.free_ticks = begin_ticks + wire_bytes * self._byte_ticks
        wire.counters.tlps += 1
        wire.counters.payload_bytes += nbytes
        wire.counters.wire_bytes += wire_bytes
        busy_ticks = wire.free_ticks - wire.busy_from_ticks
        assert wire.busy_bytes * self._byte_ticks <= busy_ticks, "more packets than the wire has had time for"

        if self._observer:
            end_ps, upstream = self._to_ps(wire.free_ticks), wire is self._up
            self._observer(SentTlp(end_ps, upstream, kind, address, nbytes, wire_bytes))

        arrival_ticks = wire.free_ticks + self._one_way_ticks
        if wire.gate:
            wire.gate.give_back(kind, nbytes, arrival_ticks + self._credit_ticks)
        if arrival_ticks > opposite.dllps_due_ticks:
            if opposite.dllps_pending:  # that window's pair left before this TLP came
                if opposite.free_ticks > opposite.dllps_due_ticks:  # else in a gap, where it delayed nobody
                    opposite.free_ticks += self._dllps_ticks
                opposite.send_dllps()
            opposite.dllps_due_ticks = arrival_ticks + self._interval_ticks
            opposite.dllps_pending = True
        return arrival_ticks

    def _start_ticks(self, start_ps: int, address: int, nbytes: int) -> int:
        require_integer("start_ps", start_ps, 0, 2**63 - 1)
        require_integer("address", address, 0, 2**64 - 1)
        require_integer("nbytes", nbytes, 1, 2**64 - address)
        return start_ps * self._ticks_per_ps

    @staticmethod
    def _require_one_line(address: int, nbytes: int) -> None:
        room_bytes = CPU_LINE_BYTES - address % CPU_LINE_BYTES
        if nbytes > room_bytes:
            raise ValueError(
                f"nbytes is {nbytes} at {address:#x}; allowed is 1 to {room_bytes}, within one 64-byte line"
            )

    def _to_ps(self, ticks: int) -> int:
        return -(-ticks // self._ticks_per_ps)
