"""Ends of a PCIe link with what cocotbext-pcie leaves out: LCRC verdict, NAK, replay, link down, faults, log.

Source: PCI Express Base Specification 5.0, 3.5 to 3.6 (data link layer), 2.9 (DL_Down).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.queue import Queue
from cocotb.triggers import Timer
from cocotbext.pcie.core.dllp import Dllp, DllpType
from cocotbext.pcie.core.port import SimPort
from cocotbext.pcie.core.tlp import Tlp

from nearkv_sim.pcie.faults import Fault, FaultKind
from nearkv_sim.pcie.frames import Frame, RetryBuffer, Traffic, WireConfig, lcrc, now_ps, payload_bytes

INIT_DLLP_PS = 100_000  # pause between InitFC packets, which else fill a simulation with nothing but them
REPLAYS_BEFORE_RETRAINING = 4  # REPLAY_NUM has two bits
RETRAINING_PS = 10_000_000  # time in Recovery; assumed
_NEVER_PS = 10**15  # no UpdateFC is ever lost here, so that none needs repeating
_LONGEST_TLP_BYTES = 4096 + 28


class LinkPort(SimPort):  # type: ignore[misc]  # of an untyped package
    """One end of a link, for a device, a switch or a root port.

    Formula: a TLP keeps its place in the retry buffer until it is acknowledged. The receiver checks LCRC and
    sequence number; a bad TLP is discarded, and a NAK asks for everything behind the last good one. A sender
    that hears nothing for `replay_ps` replays, too; after four replays in vain the link retrains first.
    Timing: a packet occupies the wire for its bytes, and arrives `delay_ps` after its last, in order.

    Args:
        wire: of this link, the same at both ends.
        credits: initial flow-control credits (PH, PD, NPH, NPD, CPLH, CPLD); 0 for infinite.

    Attributes:
        observer: called with every TLP as its last byte leaves, and with its status.
        judge: says what a TLP suffers; asked once per TLP.
        up: whether the link is.
        recovering: whether it will be without the host's doing.
        events: what went wrong, by name.
        traffic: sent since the last `clear`.

    """

    def __init__(self, wire: WireConfig, credits: tuple[int, int, int, int, int, int]) -> None:
        super().__init__(fc_init=[list(credits)] * 8)
        self.next_recv_seq: int
        self.fc_idle_timer_steps = self.fc_update_steps = _NEVER_PS
        self.retry_buffer = RetryBuffer()
        self.observer: Callable[[Tlp, str], None] | None = None
        self.judge: Callable[[Tlp], Fault | None] | None = None
        self.up, self.recovering = True, False
        self.events: Counter[str] = Counter()
        self.traffic = Traffic()
        self.replay_ps = 3 * wire.dllp_interval_ps + 2 * wire.delay_ps + wire.packet_ps(_LONGEST_TLP_BYTES)
        self._wire = wire
        self._frames: Queue[tuple[int, int, Frame]] = Queue()  # arrival, generation
        self._generation = 0  # how often the link has come up again
        self._replay_wanted = False
        self._replays_in_vain = 0
        self._suffering: dict[int, list[Fault]] = {}  # by sequence number: one entry per transmission
        self._replay_timer: Any = None
        cocotb.start_soon(self._deliver())

    def _connect_int(self, port: Any) -> None:
        super()._connect_int(port)
        self.max_latency_timer_steps = self._wire.dllp_interval_ps

    def clear(self) -> None:
        """Start counting afresh."""
        self.events.clear()
        self.traffic = Traffic()

    def counts(self) -> dict[str, int]:
        """Free credits of the far side's buffers, and what is still held here."""
        state = self.fc_state[0]
        kinds = {"ph": state.ph, "pd": state.pd, "nph": state.nph, "cplh": state.cplh, "cpld": state.cpld}
        free = {f"credits_{name}": credits.tx_credits_available for name, credits in kinds.items()}
        held = {"unacknowledged": len(self.retry_buffer), "unreleased": len(state.rx_release_fc_dict)}
        return {**free, **held, "queued": self.rx_queue.qsize() + self.tx_queue.qsize()}

    async def send(self, pkt: Tlp) -> None:
        """Queue a TLP once it has credits; a link that is down, or goes down meanwhile, swallows it."""
        pkt.release_fc()
        state, generation = self.fc_state[0], self._generation
        if self.up:
            await state.initialized.wait()
        updates = {"P": state.fc_p_update, "NP": state.fc_np_update, "CPL": state.fc_cpl_update}
        while self.up and generation == self._generation and not state.tx_tlp_has_credit(pkt):
            update = updates[pkt.get_fc_type().name]
            update.clear()
            await update.wait()
        if not self.up or generation != self._generation:
            self.events["dropped while down"] += 1
            return
        state.tx_consume_tlp_fc(pkt)
        await self.tx_queue.put(pkt)
        self.tx_queue_sync.set()

    async def handle_tx(self, pkt: Tlp | Dllp) -> None:
        """Put a packet on the wire, behind a replay that is due."""
        if isinstance(pkt, Dllp):
            if not self.fc_initialized:
                await Timer(INIT_DLLP_PS, "ps")
            await self._put(pkt, "ok")
        if self._replay_wanted and self.retry_buffer:
            await self._replay(pkt)
        if isinstance(pkt, Tlp):
            await self._put(pkt, "ok")

    async def _replay(self, newest: Tlp | Dllp) -> None:
        """Send everything again that is not acknowledged, but the one that is about to be sent."""
        if self._replays_in_vain >= REPLAYS_BEFORE_RETRAINING:
            self.events["retraining"] += 1
            self._replays_in_vain = 0
            await Timer(RETRAINING_PS, "ps")
        self._replay_wanted = False
        self._replays_in_vain += 1
        self.events["replay"] += 1
        for held in [held for held in self.retry_buffer if held is not newest]:
            await self._put(held, "replay")

    async def _put(self, packet: Tlp | Dllp, status: str) -> None:
        wire_bytes = packet.get_wire_size()
        await Timer(self._wire.packet_ps(wire_bytes), "ps")
        if not self.up:
            self.retry_buffer.clear()
            return
        arrival_ps = now_ps() + self._wire.delay_ps
        if isinstance(packet, Dllp):
            self.traffic += Traffic(wire_bytes=wire_bytes)
            self._frames.put_nowait((arrival_ps, self._generation, Frame(packet)))
            return
        fault = self._fault_of(packet, first=status == "ok")
        kind = fault.fault if fault else None
        packet.ep = packet.ep or kind is FaultKind.POISONED
        self.traffic += Traffic(1, payload_bytes(packet), wire_bytes)
        if self.observer:
            self.observer(packet, fault.fault.value if fault else status)
        self._start_replay_timer()
        if fault and kind is FaultKind.LINK_DOWN:
            self.fail(fault.delay_ps)
            return
        flipped = int(kind is FaultKind.CORRUPTED)
        frame = Frame(packet, lcrc(packet), flipped, kind in (FaultKind.TIMEOUT, FaultKind.LOST_MSI))
        late_ps = fault.delay_ps if fault else 0
        copies = {FaultKind.DROPPED: 0, FaultKind.DUPLICATED: 2}
        for _ in range(copies.get(kind, 1) if kind else 1):
            self._frames.put_nowait((arrival_ps + late_ps, self._generation, frame))

    def _fault_of(self, tlp: Tlp, *, first: bool) -> Fault | None:
        """What this transmission suffers."""
        if first and self.judge and (fault := self.judge(tlp)):
            self._suffering[tlp.seq] = [fault] * fault.count
        left = self._suffering.get(tlp.seq)
        return left.pop() if left else None

    async def _deliver(self) -> None:
        while True:
            arrival_ps, generation, frame = await self._frames.get()
            if (wait_ps := arrival_ps - now_ps()) > 0:
                await Timer(wait_ps, "ps")
            if self.up and generation == self._generation:
                self.other.receive(frame)

    def receive(self, frame: Frame) -> None:
        """Judge a packet that has arrived."""
        packet = frame.packet
        if isinstance(packet, Dllp):
            self.handle_dllp(packet)
        elif not frame.intact():
            self.events["bad lcrc"] += 1
            self._nak()
        elif packet.seq == self.next_recv_seq:
            self.next_recv_seq = (self.next_recv_seq + 1) & 0xFFF
            self.nak_scheduled = False
            self.start_ack_latency_timer()
            received = Tlp(packet)
            received.lost = frame.lost
            self.fc_state[0].rx_process_tlp_fc(received)
            self.rx_queue.put_nowait(received)
        elif (self.next_recv_seq - packet.seq) & 0xFFF < 2048:
            self.events["duplicate"] += 1
            self.stop_ack_latency_timer()
            self.send_ack.set()
        else:
            self.events["out of sequence"] += 1
            self._nak()

    def _nak(self) -> None:
        if not self.nak_scheduled:
            self.nak_scheduled = True
            self.stop_ack_latency_timer()
            self.send_ack.set()

    async def _run_receive(self) -> None:
        while True:
            tlp = await self.rx_queue.get()
            if tlp.lost:
                tlp.release_fc()
            else:
                await self.rx_handler(tlp)

    def handle_dllp(self, dllp: Dllp) -> None:
        """Take an acknowledgement; a NAK acknowledges, too, and asks for the rest again."""
        acknowledged = self.ackd_seq
        naked = dllp.type == DllpType.NAK
        super().handle_dllp(Dllp.create_ack(dllp.seq) if naked else dllp)
        if self.ackd_seq != acknowledged:
            self._replays_in_vain = 0
        if naked:
            self.events["nak"] += 1
            self._want_replay()

    def _want_replay(self) -> None:
        self._replay_wanted = True
        self.send_ack.set()  # wakes the transmitter, at the price of an Ack that says nothing new

    def _start_replay_timer(self) -> None:
        if self._replay_timer is None or self._replay_timer.done():
            self._replay_timer = cocotb.start_soon(self._run_replay_timer())

    async def _run_replay_timer(self) -> None:
        while self.retry_buffer:
            acknowledged, generation = self.ackd_seq, self._generation
            await Timer(self.replay_ps, "ps")
            silent = acknowledged == self.ackd_seq and generation == self._generation
            if silent and self.retry_buffer and self.up:
                self._want_replay()

    def fail(self, down_ps: int) -> None:
        """Take the link down: all that is on it is lost. It is up again after `down_ps`, 0 for never."""
        for end in (self, self.other):
            end.up, end.recovering = False, down_ps > 0
            end.events["link down"] += 1
            end.retry_buffer.clear()
            end.wake()
        if down_ps:
            cocotb.start_soon(self._recover(down_ps))

    def wake(self) -> None:
        """Let all who wait for credits see the link's state."""
        state = self.fc_state[0]
        for update in (state.fc_p_update, state.fc_np_update, state.fc_cpl_update):
            update.set()

    async def _recover(self, down_ps: int) -> None:
        await Timer(down_ps, "ps")
        for end in (self, self.other):
            end.restart()

    def restart(self) -> None:
        """Initialise sequence numbers and credits as after training."""
        self._generation += 1
        self.next_transmit_seq, self.ackd_seq, self.next_recv_seq = 0, 0xFFF, 0
        self.nak_scheduled = self._replay_wanted = self.fc_initialized = False
        self._replays_in_vain = 0
        self.retry_buffer.clear()
        self._suffering.clear()
        self.fc_state[0].reset()
        self.fc_state[0].active = self.up = True
        self.recovering = False
        self.send_fc.set()
