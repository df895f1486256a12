"""`CompiledComponent`: RTL as a function from arrays to arrays, bit and cycle exact."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from amaranth.lib import wiring

from nearkv_sim.cosim.build import build_library
from nearkv_sim.cosim.exchange import RUNNING, Exchange
from nearkv_sim.cosim.export import describe_source, render_cpp
from nearkv_sim.cosim.result import RunResult
from nearkv_sim.cosim.stalls import Stalls


class CompiledComponent:
    """A component compiled to machine code and driven by whole arrays.

    Args:
        component: its signature holds streams and plain outputs only; one clock domain, `sync`.
        name: what messages and the cache call it: letters, digits, `_`, `-`, `.`.
        flatten: compile the component as one function, which runs fastest but takes the compiler more than
            linear time; without, every module is one, which is what a large component needs.

    Attributes:
        ports: the streams and plain outputs.
        cached: whether the library came from the cache.
        build_seconds: wall time of elaboration and, unless cached, of Yosys and the compiler.

    One instance holds one state and belongs to one thread at a time; several instances of one component
    are independent. Raises ValueError for unsupported ports, CosimBuildError and OSError from the build.

    """

    def __init__(self, component: wiring.Component, *, name: str, flatten: bool = True) -> None:
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
            raise ValueError(f"name is {name!r}; allowed: letters, digits, '_', '-', '.'")
        started = time.perf_counter()
        source = describe_source(component, flatten=flatten)
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
        exchange = Exchange(
            self.name,
            self.ports,
            inputs=inputs,
            outputs=outputs,
            stalls=stalls,
            gaps=gaps or {},
            max_idle_cycles=max_idle_cycles,
            drain_cycles=drain_cycles,
        )
        try:
            while self._library.nearkv_run(self._instance, *exchange.addresses) == RUNNING:
                pass
            exchange.check()
        except BaseException:  # an interrupted run leaves beats half offered
            self.reset()
            raise
        return exchange.result()

    def _check_names(self, what: str, given: Mapping[str, Any], *, is_input: bool | None) -> None:
        allowed = [port.name for port in self.ports.streams if is_input in (None, port.is_input)]
        for name in given:
            if name not in allowed:
                raise ValueError(f"{what} is {name!r}; {self.name} allows: {', '.join(allowed) or 'none'}")
