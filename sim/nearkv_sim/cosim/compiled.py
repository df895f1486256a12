"""`CompiledComponent`: RTL as a function from arrays to arrays, bit and cycle exact."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from amaranth.lib import wiring

from nearkv_sim.cosim.build import build_library
from nearkv_sim.cosim.export import describe_source, render_cpp
from nearkv_sim.cosim.ports import StreamPort
from nearkv_sim.cosim.result import (
    CosimContractError,
    CosimDeadlock,
    CosimSurplus,
    FlagStats,
    PortStats,
    RunResult,
    Words,
)
from nearkv_sim.cosim.stalls import Stalls

_SLICE_CYCLES = 1 << 20  # between two looks at pending signals such as Ctrl-C
_RUNNING, _COMPLETE, _DEADLOCK, _VALID_WITHDRAWN, _PAYLOAD_CHANGED = range(5)


# Mirrors of the structures in driver.cpp.jinja.
class _Port(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_void_p),
        ("gaps", ctypes.c_void_p),
        ("beats", ctypes.c_uint64),
        ("stall_begin", ctypes.c_uint64),
        ("stall_continue", ctypes.c_uint64),
        ("random_state", ctypes.c_uint64),
        ("done", ctypes.c_uint64),
        ("gap_left", ctypes.c_uint64),
        ("first_cycle", ctypes.c_int64),
        ("last_cycle", ctypes.c_int64),
        ("blocked_cycles", ctypes.c_uint64),
        ("starved_cycles", ctypes.c_uint64),
        ("stalled", ctypes.c_uint8),
        ("valid", ctypes.c_uint8),
        ("ready", ctypes.c_uint8),
        ("was_blocked", ctypes.c_uint8),
    )


class _Signal(ctypes.Structure):
    _fields_ = (
        ("words", ctypes.c_void_p),
        ("high_cycles", ctypes.c_uint64),
        ("first_high_cycle", ctypes.c_int64),
        ("last_high_cycle", ctypes.c_int64),
    )


class _Control(ctypes.Structure):
    _fields_ = (
        ("slice_cycles", ctypes.c_uint64),
        ("max_idle_cycles", ctypes.c_uint64),
        ("drain_cycles", ctypes.c_uint64),
        ("remaining", ctypes.c_uint64),
        ("cycle", ctypes.c_uint64),
        ("idle_cycles", ctypes.c_uint64),
        ("cycles", ctypes.c_uint64),
        ("status", ctypes.c_int32),
        ("faulty_port", ctypes.c_int32),
    )


class CompiledComponent:
    """A component compiled to machine code and driven by whole arrays.

    Args:
        component: its signature holds streams and plain outputs only; one clock domain, `sync`.
        name: what messages and the cache call it: letters, digits, `_`, `-`, `.`.

    Attributes:
        ports: the streams and plain outputs.
        cached: whether the library came from the cache.
        build_seconds: wall time of elaboration and, unless cached, of Yosys and the compiler.

    One instance holds one state and belongs to one thread at a time; several instances of one component
    are independent. Raises ValueError for unsupported ports, CosimBuildError and OSError from the build.

    """

    def __init__(self, component: wiring.Component, *, name: str) -> None:
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise ValueError(f"name is {name!r}; allowed: letters, digits, '_', '-', '.'")
        started = time.perf_counter()
        source = describe_source(component)
        path, self.cached = build_library(name, source.digest, lambda: render_cpp(source))
        self.build_seconds = time.perf_counter() - started
        self.name = name
        self.ports = source.ports
        self._library = ctypes.CDLL(str(path))
        self._library.nearkv_create.restype = ctypes.c_void_p
        self._library.nearkv_destroy.argtypes = [ctypes.c_void_p]
        self._library.nearkv_run.argtypes = [ctypes.c_void_p] * 4
        self._instance: int | None = self._library.nearkv_create()

    def __del__(self) -> None:
        """Free the model."""
        if getattr(self, "_instance", None):
            self._library.nearkv_destroy(self._instance)
            self._instance = None

    def reset(self) -> None:
        """Return to the state after power-on and one cycle of reset, memories included."""
        self._library.nearkv_destroy(self._instance)
        self._instance = self._library.nearkv_create()

    def run(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Mapping[str, int],
        *,
        stalls: Stalls | None = None,
        gaps: Mapping[str, npt.ArrayLike] | None = None,
        max_idle_cycles: int = 10_000,
        drain_cycles: int = 0,
    ) -> RunResult:
        """Send every input beat, take the expected output beats; the state is kept for the next run.

        Args:
            inputs: beats by input stream, uint32 [beats, words] with words = ceil(payload bits / 32),
                least significant word first (see `pack_words`). A stream left out sends nothing.
            outputs: number of beats to take by output stream. A stream left out, or one that has sent
                its beats, is not ready.
            stalls: pauses of sources and sinks; None runs at full rate.
            gaps: idle cycles of a source before each beat, by input stream, integers [beats].
            max_idle_cycles: cycles without a transfer (and without a gap) after which the run is given up.
            drain_cycles: further cycles with every output ready, in which no beat may arrive.

        Raises:
            ValueError: an unknown port, a wrong shape or dtype, bits beyond the payload.
            CosimDeadlock, CosimSurplus, CosimContractError: the component misbehaved; it is then reset.

        """
        for what, given, is_input in (("input", inputs, True), ("output", outputs, False)):
            self._check_names(what, given, is_input=is_input)
        self._check_names("input", gaps or {}, is_input=True)
        if stalls is not None:
            self._check_names("stream", stalls.per_port, is_input=None)
        for argument, value, least in (
            ("max_idle_cycles", max_idle_cycles, 1),
            ("drain_cycles", drain_cycles, 0),
        ):
            if value < least:
                raise ValueError(f"{argument} is {value}; allowed: at least {least}")

        streams = self.ports.streams
        ports = (_Port * len(streams))()
        buffers: list[Words] = []
        gap_buffers: list[Words] = []  # keeps the arrays alive that `ports` points into
        for index, port in enumerate(streams):
            state = ports[index]
            if port.is_input:
                words = self._input_words(port, inputs.get(port.name))
                state.beats = len(words)
                if gaps is not None and port.name in gaps:
                    gap_buffers.append(self._gap_cycles(port, gaps[port.name], len(words)))
                    state.gaps = gap_buffers[-1].ctypes.data
                    state.gap_left = gap_buffers[-1][0] if len(words) else 0
            else:
                state.beats = self._beat_count(port, outputs.get(port.name, 0))
                words = np.zeros((state.beats + drain_cycles, port.words), np.uint32)
            buffers.append(words)
            state.words = words.ctypes.data
            state.first_cycle = state.last_cycle = -1
            if stalls is not None:
                share = stalls.probability(port.name, is_input=port.is_input)
                state.stall_begin, state.stall_continue = stalls.thresholds(share)
                state.random_state = stalls.port_seed(index)

        signals = (_Signal * max(1, len(self.ports.signals)))()
        signal_words = [np.zeros(signal.words, np.uint32) for signal in self.ports.signals]
        for signal_state, values in zip(signals, signal_words, strict=False):
            signal_state.words = values.ctypes.data
            signal_state.first_high_cycle = signal_state.last_high_cycle = -1

        control = _Control(
            slice_cycles=_SLICE_CYCLES,
            max_idle_cycles=max_idle_cycles,
            drain_cycles=drain_cycles,
            remaining=sum(port.beats for port in ports),
        )
        arguments = [ctypes.addressof(item) for item in (ports, signals, control)]
        try:
            while self._library.nearkv_run(self._instance, *arguments) == _RUNNING:
                pass
            self._check_outcome(ports, buffers, control)
        except BaseException:  # an interrupted run leaves beats half offered
            self.reset()
            raise

        return RunResult(
            outputs={
                port.name: buffer[: state.beats]
                for port, buffer, state in zip(streams, buffers, ports, strict=True)
                if not port.is_input
            },
            cycles=control.cycles,
            ports={port.name: _port_stats(state) for port, state in zip(streams, ports, strict=True)},
            flags={
                signal.name: _flag_stats(state)
                for signal, state in zip(self.ports.signals, signals, strict=False)
                if signal.width == 1
            },
            signals={
                signal.name: int.from_bytes(values.astype("<u4").tobytes(), "little")
                for signal, values in zip(self.ports.signals, signal_words, strict=True)
            },
        )

    def _check_names(self, what: str, given: Mapping[str, Any], *, is_input: bool | None) -> None:
        allowed = [port.name for port in self.ports.streams if is_input in (None, port.is_input)]
        for name in given:
            if name not in allowed:
                raise ValueError(f"{what} is {name!r}; {self.name} allows: {', '.join(allowed) or 'none'}")

    def _input_words(self, port: StreamPort, given: npt.ArrayLike | None) -> Words:
        if given is None:
            return np.zeros((0, port.words), np.uint32)
        words = np.asarray(given)
        if words.dtype != np.uint32 or words.ndim != 2 or words.shape[1] != port.words:
            raise ValueError(
                f"{port.name} is {words.dtype} {list(words.shape)}; allowed: uint32 [beats, {port.words}]"
            )
        spare_bits = 32 * port.words - port.width
        if spare_bits and len(words) and int(words[:, -1].max()) >> (32 - spare_bits):
            raise ValueError(
                f"{port.name} has bits above its payload; allowed: {port.width} bits,"
                f" so the last word is below {1 << (32 - spare_bits)}"
            )
        return np.ascontiguousarray(words)

    @staticmethod
    def _gap_cycles(port: StreamPort, given: npt.ArrayLike, beats: int) -> Words:
        gaps = np.asarray(given)
        if gaps.shape != (beats,) or gaps.dtype.kind not in "iu":
            raise ValueError(
                f"gaps of {port.name} are {gaps.dtype} {list(gaps.shape)}; allowed: integers [{beats}]"
            )
        if beats and not 0 <= int(gaps.min()) <= int(gaps.max()) < 1 << 32:
            raise ValueError(
                f"gaps of {port.name} reach {gaps.min()} and {gaps.max()}; allowed: 0 to 2^32 - 1"
            )
        return np.ascontiguousarray(gaps, np.uint32)

    @staticmethod
    def _beat_count(port: StreamPort, beats: int) -> int:
        if beats < 0:
            raise ValueError(f"beats of {port.name} is {beats}; allowed: at least 0")
        return int(beats)

    def _check_outcome(self, ports: ctypes.Array[_Port], buffers: list[Words], control: _Control) -> None:
        streams = self.ports.streams
        if control.status in (_VALID_WITHDRAWN, _PAYLOAD_CHANGED):
            what = "withdrew valid" if control.status == _VALID_WITHDRAWN else "changed its payload"
            raise CosimContractError(
                f"{self.name}: {streams[control.faulty_port].name} {what} before the beat was taken,"
                f" in cycle {control.cycle - 1}"
            )
        if control.status == _DEADLOCK:
            waiting = "; ".join(
                f"{port.name} {state.done} of {state.beats} beats ({_handshake(state)})"
                for port, state in zip(streams, ports, strict=True)
                if state.done < state.beats
            )
            raise CosimDeadlock(
                f"{self.name}: nothing moved for {control.idle_cycles} cycles up to cycle"
                f" {control.cycle - 1}; waiting: {waiting}"
            )
        for port, state, buffer in zip(streams, ports, buffers, strict=True):
            if state.done > state.beats:
                surplus = buffer[state.beats : state.done].copy()
                raise CosimSurplus(
                    f"{self.name}: {port.name} sent {len(surplus)} beats beyond the {state.beats} expected",
                    port.name,
                    surplus,
                )


def _handshake(state: _Port) -> str:
    return f"{'valid' if state.valid else 'not valid'}, {'ready' if state.ready else 'not ready'}"


def _cycle(value: int) -> int | None:
    return None if value < 0 else value


def _port_stats(state: _Port) -> PortStats:
    return PortStats(
        transfers=state.beats,
        first_cycle=_cycle(state.first_cycle),
        last_cycle=_cycle(state.last_cycle),
        blocked_cycles=state.blocked_cycles,
        starved_cycles=state.starved_cycles,
    )


def _flag_stats(state: _Signal) -> FlagStats:
    return FlagStats(
        high_cycles=state.high_cycles,
        first_high_cycle=_cycle(state.first_high_cycle),
        last_high_cycle=_cycle(state.last_high_cycle),
    )
