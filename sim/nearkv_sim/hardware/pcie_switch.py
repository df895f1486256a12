"""Several devices below one PCIe switch, packet by packet: peer-to-peer, and streams that share links."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

import simpy

from nearkv_sim.hardware.link_clock import now_ps
from nearkv_sim.hardware.link_pipe import PS_PER_S, Pipe
from nearkv_sim.hardware.pcie import HEADER_32_BIT_BYTES, HEADER_64_BIT_BYTES, TLP_FRAMING_BYTES
from nearkv_sim.hardware.pcie_config import PcieLinkConfig, require_integer
from nearkv_sim.hardware.pcie_credits import CreditConfig, CreditGate, TlpKind

__all__ = ["PcieSwitch"]

Steps = Generator[simpy.Event, Any, None]
Then = Callable[[], object]


class _Signal:
    """What several processes wait for, again and again."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._event: simpy.Event | None = None

    def wait(self) -> simpy.Event:
        self._event = self._event or self._env.event()
        return self._event

    def fire(self) -> None:
        if self._event:
            event, self._event = self._event, None
            event.succeed()


class _Port:
    """A link between the switch and one device or root complex."""

    def __init__(self, env: simpy.Environment, config: PcieLinkConfig, credits: CreditConfig) -> None:
        credits.require_room_for(config.max_payload_bytes)
        rate = int(PS_PER_S / config.byte_time_ps)
        self.config = config
        self.to_switch, self.from_switch = Pipe(rate), Pipe(rate)
        self.gate = CreditGate(credits)  # of the switch's buffers behind `to_switch`
        self.credit_known = _Signal(env)
        self.tags = config.tags  # free ones
        self.tag_freed = _Signal(env)
        self.payload_bytes_in = 0
        self._update_ps = int(config.dllp_interval_symbols * config.lanes * config.byte_time_ps)

    def return_credits(self, kind: TlpKind, nbytes: int, left_ps: int) -> None:
        """A TLP of this port leaves the switch's buffer at `left_ps`."""
        self.gate.give_back(kind, nbytes, left_ps + self._update_ps + self.config.one_way_latency_ps)
        self.credit_known.fire()

    def free_tag(self) -> None:
        """A read of this port has its last completion."""
        self.tags += 1
        self.tag_freed.fire()


class PcieSwitch:
    """A cut-through switch with one link per port.

    Timing of a TLP: it waits for credits of the switch's receive buffer and for its link to the switch, both
    shared by all streams of that port, TLP by TLP in turn. Its first byte reaches the switch after the link's
    one-way latency and leaves `hop_ps` later if the outgoing link is free; a slower link stretches it, a
    faster one starts later so as not to run dry. Its last byte arrives one way after it left. Credits come
    back when it has left the switch, plus an UpdateFC window and one way. Reads hold one of the initiator's
    tags until their last completion; the target answers `root_complex_read_latency_ps` after the request.

    Numerics: rates in whole bytes per second, times in whole ps, rounded up. DLLPs take no wire time here (up
    to 4 % of it in `pcie.PcieLink`). Addresses are aligned and need 64 bits.

    Args:
        env: time in integer ps.
        ports: by name, the root complex's among them if there is one.
        hop_ps: first byte in to first byte out.
        credits: of every receive buffer of the switch; devices and root complexes always have room.

    Raises ValueError for fewer than two ports, for unknown or equal ones in a transfer, and for no bytes.

    """

    def __init__(
        self,
        env: simpy.Environment,
        ports: Mapping[str, PcieLinkConfig],
        *,
        hop_ps: int,
        credits: CreditConfig | None = None,
    ) -> None:
        """All links idle."""
        require_integer("hop_ps", hop_ps, 0, PS_PER_S)
        if len(ports) < 2:
            raise ValueError(f"ports are {sorted(ports)}; allowed: at least two")
        credits = credits or CreditConfig()
        self._env, self._hop_ps = env, hop_ps
        self._ports = {name: _Port(env, config, credits) for name, config in ports.items()}

    def write(self, source: str, target: str, nbytes: int) -> simpy.Process:
        """Posted writes; the process ends when the last byte has arrived at the target."""
        sending, receiving = self._pair(source, target, nbytes)
        return self._env.process(self._write(sending, receiving, nbytes))

    def read(self, initiator: str, target: str, nbytes: int) -> simpy.Process:
        """Reads of the target's memory; the process ends with the last completion."""
        reading, answering = self._pair(initiator, target, nbytes)
        return self._env.process(self._read(reading, answering, nbytes))

    def payload_bytes_into(self, port: str) -> int:
        """Write and completion data that have left the switch towards a port."""
        return self._port(port).payload_bytes_in

    def _port(self, name: str) -> _Port:
        if name not in self._ports:
            raise ValueError(f"port is {name!r}; allowed: {', '.join(self._ports)}")
        return self._ports[name]

    def _pair(self, source: str, target: str, nbytes: int) -> tuple[_Port, _Port]:
        require_integer("nbytes", nbytes, 1, 2**50)
        if source == target:
            raise ValueError(f"target is {target!r}; allowed: another port than the one that asks")
        return self._port(source), self._port(target)

    def _write(self, source: _Port, target: _Port, nbytes: int) -> Steps:
        arrived = self._env.event()
        yield from self._send(source, target, TlpKind.POSTED, HEADER_64_BIT_BYTES, nbytes, arrived.succeed)
        yield arrived

    def _read(self, reader: _Port, target: _Port, nbytes: int) -> Steps:
        env = self._env
        complete = env.event()
        limit_bytes = reader.config.max_read_request_bytes
        unanswered = -(-nbytes // limit_bytes)

        def finish() -> None:
            nonlocal unanswered
            unanswered -= 1
            reader.free_tag()
            if not unanswered:
                complete.succeed()

        def answer(size: int) -> None:
            env.process(self._send(target, reader, TlpKind.COMPLETION, HEADER_32_BIT_BYTES, size, finish))

        for first in range(0, nbytes, limit_bytes):
            while not reader.tags:
                yield reader.tag_freed.wait()
            reader.tags -= 1
            delay_ps = target.config.root_complex_read_latency_ps
            asked = partial(answer, min(limit_bytes, nbytes - first))
            yield from self._launch(
                reader, target, TlpKind.NON_POSTED, HEADER_64_BIT_BYTES, 0, asked, delay_ps
            )
        yield complete

    def _send(
        self, source: _Port, target: _Port, kind: TlpKind, header_bytes: int, nbytes: int, then: Then
    ) -> Steps:
        """Send TLPs one after the other; `then` is called when the last has arrived."""
        limit_bytes = min(source.config.max_payload_bytes, target.config.max_payload_bytes)
        for _ in range((nbytes - 1) // limit_bytes):
            yield from self._launch(source, target, kind, header_bytes, limit_bytes)
        last_bytes = (nbytes - 1) % limit_bytes + 1
        yield from self._launch(source, target, kind, header_bytes, last_bytes, then)

    def _launch(
        self,
        source: _Port,
        target: _Port,
        kind: TlpKind,
        header_bytes: int,
        nbytes: int,
        then: Then | None = None,
        delay_ps: int = 0,
    ) -> Steps:
        """Put one TLP on the link to the switch and wait until it has left the source.

        `then` is called `delay_ps` after its arrival.
        """
        env = self._env
        start_ps = now_ps(env)
        while (ready_ps := source.gate.ready_at(kind, nbytes, start_ps)) != start_ps:
            yield source.credit_known.wait() if ready_ps is None else env.timeout(ready_ps - start_ps)
            start_ps = now_ps(env)
        source.gate.take(kind, nbytes, start_ps)
        wire_bytes = TLP_FRAMING_BYTES + header_bytes + -(-nbytes // 4) * 4
        end_ps = source.to_switch.send(start_ps, wire_bytes)
        faster_bytes_per_s = max(source.to_switch.bytes_per_s, target.from_switch.bytes_per_s)
        forward_ps = end_ps - wire_bytes * PS_PER_S // faster_bytes_per_s
        forward_ps += source.config.one_way_latency_ps + self._hop_ps

        def forward(_: simpy.Event) -> None:
            left_ps = target.from_switch.send(forward_ps, wire_bytes)
            target.payload_bytes_in += nbytes
            source.return_credits(kind, nbytes, left_ps)
            if then:
                wait_ps = left_ps + target.config.one_way_latency_ps + delay_ps - forward_ps
                env.timeout(wait_ps).callbacks.append(partial(_call, then))

        env.timeout(forward_ps - start_ps).callbacks.append(forward)
        yield env.timeout(end_ps - start_ps)


def _call(then: Then, _: simpy.Event) -> None:
    then()
