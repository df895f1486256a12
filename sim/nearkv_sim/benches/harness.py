"""What every cocotb bench needs: its parameters, clock and reset, stream sources and sinks, a report."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from nearkv_sim.benches import PARAMETERS_VARIABLE, REPORT_NAME

CLOCK_NS = 10


def parameters() -> dict[str, Any]:
    """What the caller of `run_bench` gave as `parameters`."""
    result: dict[str, Any] = json.loads(os.environ.get(PARAMETERS_VARIABLE, "{}"))
    return result


def report(**values: Any) -> None:
    """Add values to `BenchResult.report`; a later value replaces an earlier one of the same name."""
    path = Path(REPORT_NAME)
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **values}))


def beats_of(words: npt.NDArray[np.uint32]) -> list[int]:
    """Beats [beats, words] as integers, the way cocotb drives them."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.ascontiguousarray(words, "<u4")]


def words_of(beats: list[int], words: int) -> npt.NDArray[np.uint32]:
    """Integers as beats, uint32 [beats, words]."""
    raw = b"".join(beat.to_bytes(4 * words, "little") for beat in beats)
    return np.frombuffer(raw, "<u4").reshape(len(beats), words).astype(np.uint32)


class StreamBench:
    """Drives and collects all streams of a component in one loop per clock cycle.

    Args:
        dut: cocotb's handle of the exported component.
        inputs, outputs: names of its streams.

    """

    def __init__(self, dut: Any, *, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        self._clk, self._rst = dut.clk, dut.rst
        self._sources = {name: _Stream(dut, name) for name in inputs}
        self._sinks = {name: _Stream(dut, name) for name in outputs}

    async def start(self) -> None:
        """Start the clock and reset; call once per cocotb test."""
        for source in self._sources.values():
            source.valid.value = 0
            source.payload.value = 0
        for sink in self._sinks.values():
            sink.ready.value = 0
        self._rst.value = 1
        Clock(self._clk, CLOCK_NS, unit="ns").start()
        for _ in range(3):
            await RisingEdge(self._clk)
        self._rst.value = 0

    async def run(
        self,
        inputs: dict[str, list[int]],
        outputs: dict[str, int],
        *,
        input_pause: float = 0,
        output_pause: float = 0,
        drain_cycles: int = 50,
    ) -> tuple[dict[str, list[int]], int]:
        """Send all beats, take the expected ones, then see that no more arrive.

        Args:
            inputs: beats by stream.
            outputs: number of beats by stream.
            input_pause, output_pause: share of cycles in which a source or sink pauses, drawn from
                Python's `random`, which cocotb seeds.
            drain_cycles: cycles to wait for surplus beats.

        Returns the output beats by stream, and the clock edges up to the last of them. Raises
        AssertionError for a broken stream rule or a surplus beat. There is no limit on the cycles: give
        the cocotb test a timeout.

        """
        queues = {name: iter(beats) for name, beats in inputs.items()}
        taken: dict[str, list[int]] = {name: [] for name in outputs}
        unsent = sum(map(len, inputs.values()))
        cycles, last_cycle = 0, 0
        drain = drain_cycles
        while unsent or any(len(taken[name]) < outputs[name] for name in outputs) or drain:
            for name, queue in queues.items():
                self._sources[name].offer(queue, input_pause)
            for name in outputs:
                self._sinks[name].set_ready(random.random() >= output_pause)
            await RisingEdge(self._clk)
            cycles += 1
            for name in queues:
                unsent -= self._sources[name].accepted()
            for name, beats in taken.items():
                beat = self._sinks[name].take()
                if beat is not None:
                    beats.append(beat)
                    last_cycle = cycles
                    assert len(beats) <= outputs[name], f"{name} sent more than {outputs[name]} beats"
            if not unsent and all(len(taken[name]) == outputs[name] for name in outputs):
                drain -= 1
        return taken, last_cycle


class _Stream:
    """One stream; as a source it holds what it offered, as a sink it checks that the component does."""

    def __init__(self, dut: Any, name: str) -> None:
        self.name = name
        self.payload = getattr(dut, f"{name}_payload")
        self.valid = getattr(dut, f"{name}_valid")
        self.ready = getattr(dut, f"{name}_ready")
        self._offered = False
        self._ready = False
        self._blocked: int | None = None

    def offer(self, queue: Any, pause: float) -> None:
        if self._offered:
            return
        beat = None if random.random() < pause else next(queue, None)
        self._offered = beat is not None
        self.valid.value = int(self._offered)
        if beat is not None:
            self.payload.value = beat

    def accepted(self) -> bool:
        if self._offered and self.ready.value == 1:
            self._offered = False
            return True
        return False

    def set_ready(self, ready: bool) -> None:
        if ready != self._ready:
            self.ready.value = int(ready)
            self._ready = ready

    def take(self) -> int | None:
        valid = self.valid.value == 1
        assert valid or self._blocked is None, f"{self.name} withdrew valid before the beat was taken"
        if not valid:
            return None
        beat: int = self.payload.value.to_unsigned()
        assert self._blocked in (None, beat), f"{self.name} changed its payload before the beat was taken"
        self._blocked = None if self._ready else beat
        return beat if self._ready else None
