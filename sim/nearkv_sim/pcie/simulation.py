"""What a `PcieTransport` asks: a simulation, in a process of its own or around its caller; without cocotb."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from nearkv.device import errors
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.card.kernel_cycles import KEY_QUEUE_BEATS
from nearkv_sim.golden.topk_timing import TopKTiming
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.pcie_config import PcieLinkConfig

# More than the kernel ever computes without its memory, but for keys that it holds and for a selection.
_QUIET_CYCLES = 2048

State = tuple[int, tuple[int, ...]]  # simulated time, fields of `TransportCounters`


class Answer(NamedTuple):
    """To a request: its result or, by name and message, the exception it raised; the state behind it."""

    failure: tuple[str, str] | None
    result: Any
    state: State

    def get(self) -> Any:
        """The result; raises what the request raised."""
        if self.failure is not None:
            kind, message = self.failure
            raise getattr(errors, kind, ValueError)(message)
        return self.result


class Simulation(Protocol):
    """Host, switch, drive and card around the kernel of a design, asked one request after the other.

    Attributes:
        design, config: of kernel and link.
        state: behind the last answer.
        pid: of the simulator, once it runs.
        alive: whether it can still be asked.

    """

    design: DesignConfig
    config: PcieLinkConfig
    state: State
    pid: int | None

    @property
    def alive(self) -> bool:
        """See above."""
        ...

    def call(self, name: str, *arguments: Any) -> Any:
        """Perform a request of `commands.Commands`; raises what it raises, DeviceError without simulator."""
        ...

    def close(self) -> None:
        """End it; twice is allowed."""
        ...


def kernel_options(design: DesignConfig) -> dict[str, int]:
    """What `Topology` has to know of the kernel, by argument."""
    held_beats = KEY_QUEUE_BEATS + 2 * design.plane_rows + design.low_queue_rows
    cycles_per_beat = 2 * design.bus_bytes // design.lanes  # in INT4
    quiet_cycles = _QUIET_CYCLES + held_beats * cycles_per_beat
    if design.topk:
        capacity = design.topk.capacity
        quiet_cycles += TopKTiming(design.topk).worst_case_cycles(capacity, capacity)
    return {
        "clock_ps": PS_PER_S // design.clock_hz,
        "bus_bytes": design.bus_bytes,
        "key_masters": design.key_masters,
        "quiet_cycles": quiet_cycles,
    }
