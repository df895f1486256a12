"""NAND dies and the channels that they share, as SimPy processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import simpy

from nearkv_sim.hardware.link_clock import now_ps
from nearkv_sim.hardware.link_pipe import Pipe
from nearkv_sim.hardware.ssd.config import SsdConfig

__all__ = ["NandArray", "NandCounters"]


@dataclass
class NandCounters:
    """Operations of the whole array."""

    reads: int = 0
    programs: int = 0
    erases: int = 0


@dataclass
class _Operation:
    """One row read, program unit or block erase that waits for its die."""

    die: int
    array_ps: int
    bytes_in: int  # over the channel before the array works
    bytes_out: int  # after it
    done: simpy.Event
    effect: Callable[[], None] | None


@dataclass
class _Chip:
    """Dies of which one works at a time; what waits for them, reads first."""

    reads: deque[_Operation] = field(default_factory=deque)
    others: deque[_Operation] = field(default_factory=deque)
    busy: bool = False


class NandArray:
    """All dies of a drive.

    Timing: an operation waits for its die, then takes `command_ps` and its data on the channel, the array
    time, and, for a read, the data on the channel; the register is busy until the last byte has left. A
    channel carries one die's bytes at a time, in the order in which they become ready. Waiting reads go
    before waiting programs and erases; what has begun is not suspended. Of the dies of a chip
    (`dies_per_chip`) one works at a time. At most `max_programs` programs are under way; others hold their
    die and wait for power.

    Members:
        counters: operations begun.
        channels: one `Pipe` each; none ever carries more than its rate (asserted there).

    """

    def __init__(self, env: simpy.Environment, config: SsdConfig) -> None:
        """All dies idle."""
        self._env, self._config = env, config
        self.channels = [Pipe(config.channel_bytes_per_s) for _ in range(config.channels)]
        self._chips = [_Chip() for _ in range(config.dies // config.dies_per_chip)]
        self._power = simpy.Resource(env, config.max_programs or config.dies)
        self.counters = NandCounters()

    def read(self, die: int, page_type: int, nbytes: int) -> simpy.Event:
        """Read a row and move `nbytes` of it to the controller; the event fires when they are there."""
        self.counters.reads += 1
        return self._enqueue(die, self._config.read_latency_ps[page_type], 0, nbytes, True, None)

    def program(self, die: int, effect: Callable[[], None]) -> simpy.Event:
        """Program one unit; `effect` runs at the instant at which its cells hold the data."""
        self.counters.programs += 1
        config = self._config
        return self._enqueue(die, config.program_latency_ps, config.program_unit_bytes, 0, False, effect)

    def erase(self, die: int) -> simpy.Event:
        """Erase one block of every plane of a die."""
        self.counters.erases += 1
        return self._enqueue(die, self._config.erase_latency_ps, 0, 0, False, None)

    def _enqueue(
        self,
        die: int,
        array_ps: int,
        bytes_in: int,
        bytes_out: int,
        first: bool,
        effect: Callable[[], None] | None,
    ) -> simpy.Event:
        chip = self._chips[self._chip_of(die)]
        operation = _Operation(die, array_ps, bytes_in, bytes_out, self._env.event(), effect)
        (chip.reads if first else chip.others).append(operation)
        if not chip.busy:
            chip.busy = True
            self._env.process(self._serve(chip))
        return operation.done

    def _chip_of(self, die: int) -> int:
        """Dies `c`, `c + channels`, … are on channel c; neighbours among them form a chip."""
        config = self._config
        channel, position = die % config.channels, die // config.channels
        return position // config.dies_per_chip * config.channels + channel

    def _serve(self, chip: _Chip) -> Generator[simpy.Event, Any, None]:
        """One operation after the other, until nothing waits."""
        while chip.reads or chip.others:
            yield from self._execute((chip.reads or chip.others).popleft())
        chip.busy = False

    def _execute(self, operation: _Operation) -> Generator[simpy.Event, Any, None]:
        env, channel = self._env, self.channels[operation.die % self._config.channels]
        start_ps = channel.hold(now_ps(env), self._config.command_ps)
        if operation.bytes_in:
            start_ps = channel.send(start_ps, operation.bytes_in)
        yield env.timeout(start_ps - env.now)
        if operation.effect:
            with self._power.request() as permission:
                yield permission
                yield env.timeout(operation.array_ps)
            operation.effect()
        else:
            yield env.timeout(operation.array_ps)
        if operation.bytes_out:
            yield env.timeout(channel.send(now_ps(env), operation.bytes_out) - now_ps(env))
        operation.done.succeed()
