"""What crosses the boundary between Python and the compiled driver in one run."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from nearkv_sim.cosim.ports import Ports, StreamPort
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
RUNNING, _COMPLETE, _DEADLOCK, _VALID_WITHDRAWN, _PAYLOAD_CHANGED = range(5)


# Mirrors of the structures in driver.cpp.jinja.
class PortState(ctypes.Structure):
    """One stream in a run."""

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


class SignalState(ctypes.Structure):
    """One plain output in a run."""

    _fields_ = (
        ("words", ctypes.c_void_p),
        ("high_cycles", ctypes.c_uint64),
        ("first_high_cycle", ctypes.c_int64),
        ("last_high_cycle", ctypes.c_int64),
    )


class Control(ctypes.Structure):
    """Limits and progress of a run."""

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


class Exchange:
    """Arrays and counters of one run, in the driver's layout.

    Args:
        name: the component, for messages.
        ports: its ports.
        inputs, outputs, stalls, gaps, max_idle_cycles, drain_cycles: as for `CompiledComponent.run`, with
            known port names.

    Raises ValueError for a wrong shape, dtype or range.

    """

    def __init__(
        self,
        name: str,
        ports: Ports,
        *,
        inputs: Mapping[str, npt.ArrayLike],
        outputs: Mapping[str, int],
        stalls: Stalls | None,
        gaps: Mapping[str, npt.ArrayLike],
        max_idle_cycles: int,
        drain_cycles: int,
    ) -> None:
        for argument, value, least in (
            ("max_idle_cycles", max_idle_cycles, 1),
            ("drain_cycles", drain_cycles, 0),
        ):
            if value < least:
                raise ValueError(f"{argument} is {value}; allowed: at least {least}")
        self._name = name
        self._ports = ports
        self._states = (PortState * len(ports.streams))()
        self._buffers: list[Words] = []
        self._gaps: list[Words] = []  # keeps alive what the states point into
        for index, (port, state) in enumerate(zip(ports.streams, self._states, strict=True)):
            if port.is_input:
                words = _input_words(port, inputs.get(port.name))
                state.beats = len(words)
                if port.name in gaps:
                    self._gaps.append(_gap_cycles(port, gaps[port.name], len(words)))
                    state.gaps = self._gaps[-1].ctypes.data
                    state.gap_left = sum(self._gaps[-1][:1])
            else:
                beats = outputs.get(port.name, 0)
                if beats < 0:
                    raise ValueError(f"beats of {port.name} is {beats}; allowed: at least 0")
                state.beats = beats
                words = np.zeros((beats + drain_cycles, port.words), np.uint32)
            self._buffers.append(words)
            state.words = words.ctypes.data
            state.first_cycle = state.last_cycle = -1
            if stalls is not None:
                share = stalls.probability(port.name, is_input=port.is_input)
                state.stall_begin, state.stall_continue = stalls.thresholds(share)
                state.random_state = stalls.port_seed(index)
        self._signals = (SignalState * len(ports.signals))()
        self._signal_words = [np.zeros(signal.words, np.uint32) for signal in ports.signals]
        for signal_state, values in zip(self._signals, self._signal_words, strict=True):
            signal_state.words = values.ctypes.data
            signal_state.first_high_cycle = signal_state.last_high_cycle = -1
        self._control = Control(
            slice_cycles=_SLICE_CYCLES,
            max_idle_cycles=max_idle_cycles,
            drain_cycles=drain_cycles,
            remaining=sum(state.beats for state in self._states),
        )

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Addresses of ports, signals and control for the driver; valid while the exchange lives."""
        return (
            ctypes.addressof(self._states),
            ctypes.addressof(self._signals),
            ctypes.addressof(self._control),
        )

    def check(self) -> None:
        """Raise what the driver found: CosimContractError, CosimDeadlock or CosimSurplus."""
        streams, control = self._ports.streams, self._control
        if control.status in (_VALID_WITHDRAWN, _PAYLOAD_CHANGED):
            what = "withdrew valid" if control.status == _VALID_WITHDRAWN else "changed its payload"
            raise CosimContractError(
                f"{self._name}: {streams[control.faulty_port].name} {what} before the beat was taken,"
                f" in cycle {control.cycle - 1}"
            )
        if control.status == _DEADLOCK:
            waiting = "; ".join(
                f"{port.name} {state.done} of {state.beats} beats"
                f" ({'valid' if state.valid else 'not valid'}, {'ready' if state.ready else 'not ready'})"
                for port, state in zip(streams, self._states, strict=True)
                if state.done < state.beats
            )
            raise CosimDeadlock(
                f"{self._name}: nothing moved for {control.idle_cycles} cycles up to cycle"
                f" {control.cycle - 1}; waiting: {waiting}"
            )
        for port, state, buffer in zip(streams, self._states, self._buffers, strict=True):
            if state.done > state.beats:
                surplus = buffer[state.beats : state.done].copy()
                raise CosimSurplus(
                    f"{self._name}: {port.name} sent {len(surplus)} beats beyond the {state.beats} expected",
                    port.name,
                    surplus,
                )

    def result(self) -> RunResult:
        """The result of a run that `check` has passed."""
        streams, signals = self._ports.streams, self._ports.signals
        return RunResult(
            outputs={
                port.name: buffer[: state.beats]
                for port, buffer, state in zip(streams, self._buffers, self._states, strict=True)
                if not port.is_input
            },
            cycles=self._control.cycles,
            ports={
                port.name: PortStats(
                    transfers=state.beats,
                    first_cycle=_cycle(state.first_cycle),
                    last_cycle=_cycle(state.last_cycle),
                    blocked_cycles=state.blocked_cycles,
                    starved_cycles=state.starved_cycles,
                )
                for port, state in zip(streams, self._states, strict=True)
            },
            flags={
                signal.name: FlagStats(
                    high_cycles=state.high_cycles,
                    first_high_cycle=_cycle(state.first_high_cycle),
                    last_high_cycle=_cycle(state.last_high_cycle),
                )
                for signal, state in zip(signals, self._signals, strict=True)
                if signal.width == 1
            },
            signals={
                signal.name: int.from_bytes(values.astype("<u4").tobytes(), "little")
                for signal, values in zip(signals, self._signal_words, strict=True)
            },
        )


def _cycle(value: int) -> int | None:
    return None if value < 0 else value


def _input_words(port: StreamPort, given: npt.ArrayLike | None) -> Words:
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


def _gap_cycles(port: StreamPort, given: npt.ArrayLike, beats: int) -> Words:
    gaps = np.asarray(given)
    if gaps.shape != (beats,) or gaps.dtype.kind not in "iu":
        raise ValueError(
            f"gaps of {port.name} are {gaps.dtype} {list(gaps.shape)}; allowed: integers [{beats}]"
        )
    if beats and not 0 <= int(gaps.min()) <= int(gaps.max()) < 1 << 32:
        raise ValueError(f"gaps of {port.name} reach {gaps.min()} and {gaps.max()}; allowed: 0 to 2^32 - 1")
    return np.ascontiguousarray(gaps, np.uint32)
