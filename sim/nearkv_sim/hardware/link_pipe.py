"""A pipe that moves bytes at a fixed rate, first come first served, in exact integer time."""

from __future__ import annotations

from nearkv_sim.hardware.pcie_config import require_integer

__all__ = ["PS_PER_S", "Pipe"]

PS_PER_S = 10**12


class Pipe:
    """One direction of a bus or link.

    Timing: a transfer begins when it is ready and the pipe is free, and takes `nbytes / bytes_per_s`. Time is
    kept in ticks of 1/`bytes_per_s` ps, so nothing is lost to rounding; returned values are rounded up. Calls
    are served in call order, so a caller must not be late: issue transfers in the order they become ready.

    Args:
        bytes_per_s: rate, from 1 to 10**13.

    Members:
        nbytes: carried so far.
        busy_ps: time spent carrying or held, rounded down.

    """

    def __init__(self, bytes_per_s: int) -> None:
        """Start at time 0, free."""
        require_integer("bytes_per_s", bytes_per_s, 1, 10**13)
        self.bytes_per_s = bytes_per_s
        self.nbytes = 0
        self._held_ps = 0
        self._free_ticks = 0
        self._busy_from_ticks = self._busy_bytes = 0  # since the pipe was last free

    @property
    def busy_ps(self) -> int:
        """Time spent carrying or held, in ps."""
        return self.nbytes * PS_PER_S // self.bytes_per_s + self._held_ps

    @property
    def free_ps(self) -> int:
        """When the pipe is free, in ps."""
        return -(-self._free_ticks // self.bytes_per_s)

    def send(self, ready_ps: int, nbytes: int) -> int:
        """Carry `nbytes` that are ready at `ready_ps`; returns when the last has left, in ps.

        Raises ValueError for a negative or fractional argument.
        """
        if type(ready_ps) is not int or type(nbytes) is not int or ready_ps < 0 or nbytes < 0:
            require_integer(
                "ready_ps", ready_ps, 0, 2**63 - 1
            )  # every packet comes by: only to name the fault
            require_integer("nbytes", nbytes, 0, 2**63 - 1)
        ready_ticks = ready_ps * self.bytes_per_s
        if ready_ticks >= self._free_ticks:
            self._busy_from_ticks, self._busy_bytes = ready_ticks, 0
        self._free_ticks = max(ready_ticks, self._free_ticks) + nbytes * PS_PER_S
        self.nbytes += nbytes
        self._busy_bytes += nbytes
        busy_ticks = self._free_ticks - self._busy_from_ticks
        assert self._busy_bytes * PS_PER_S <= busy_ticks, "more bytes than the rate allows"
        return -(-self._free_ticks // self.bytes_per_s)

    def hold(self, ready_ps: int, duration_ps: int) -> int:
        """Occupy the pipe without payload, for commands; returns when it is free again, in ps."""
        require_integer("ready_ps", ready_ps, 0, 2**63 - 1)
        require_integer("duration_ps", duration_ps, 0, 2**63 - 1)
        self._free_ticks = max(ready_ps * self.bytes_per_s, self._free_ticks) + duration_ps * self.bytes_per_s
        self._held_ps += duration_ps
        return self.free_ps
