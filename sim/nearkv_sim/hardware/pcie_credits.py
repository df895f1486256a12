"""Flow-control credits: the receive buffers that the far side of a PCIe wire has announced.

Source: PCI Express Base Specification 5.0, 2.6.1: one data credit is 16 bytes; a header credit is one TLP;
smallest initial credits in table 2-46; infinite completion credits wherever completions are always wanted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from nearkv_sim.hardware.pcie_config import require_integer

__all__ = ["CreditConfig", "CreditGate", "TlpKind"]

CREDIT_BYTES = 16
MOST_HEADERS = 127  # half the range of an 8-bit counter (Base Spec 2.6.1)
MOST_DATA = 2047  # half the range of a 12-bit counter


class TlpKind(IntEnum):
    """What flow control tells apart."""

    POSTED = 0
    NON_POSTED = 1
    COMPLETION = 2


@dataclass(frozen=True, kw_only=True)
class CreditConfig:
    """Receive buffers of either side, in credits; 0 announces infinitely many, as the Base Spec has it.

    Attributes:
        posted_headers, posted_data: for writes.
        non_posted_headers: for read requests, which carry no data.
        completion_headers, completion_data: infinite in endpoints and root complexes.
        drain_ps: a TLP has arrived until its buffer is free again.

    """

    posted_headers: int = 32
    posted_data: int = 512
    non_posted_headers: int = 32
    completion_headers: int = 0
    completion_data: int = 0
    drain_ps: int = 0

    def __post_init__(self) -> None:
        """ValueError for more than the counters allow."""
        for name in ("posted_headers", "non_posted_headers", "completion_headers"):
            require_integer(name, getattr(self, name), 0, MOST_HEADERS)
        for name in ("posted_data", "completion_data"):
            require_integer(name, getattr(self, name), 0, MOST_DATA)
        require_integer("drain_ps", self.drain_ps, 0, 10**12)

    def require_room_for(self, max_payload_bytes: int) -> None:
        """ValueError if a full TLP would never get its data credits."""
        least = max_payload_bytes // CREDIT_BYTES
        for name in ("posted_data", "completion_data"):
            if 0 < getattr(self, name) < least:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; allowed: 0 (infinite), or at least {least} for"
                    f" payloads of {max_payload_bytes} bytes"
                )

    def limits(self, kind: TlpKind) -> tuple[int, int]:
        """Header and data credits of a kind."""
        return (
            (self.posted_headers, self.posted_data),
            (self.non_posted_headers, 0),
            (self.completion_headers, self.completion_data),
        )[kind]


@dataclass
class _Class:
    """Credits of one kind: what is left, and what will come back when."""

    headers: int
    data: int
    returns: deque[tuple[int, int]]  # (ticks, data credits) of one header each, ascending

    def take_back(self, until: int) -> None:
        """Count what has come back by then."""
        while self.returns and self.returns[0][0] <= until:
            _, data = self.returns.popleft()
            self.headers += 1
            self.data += data


class CreditGate:
    """Credits of one wire. Time is in whatever unit the caller uses, as long as it is always the same.

    Formula: a TLP may leave when one header credit and ceil(payload / 16) data credits of its kind are left.
    They come back when the receiver has drained it and its UpdateFC has arrived; the caller says when.
    """

    def __init__(self, config: CreditConfig) -> None:
        """All credits announced and free."""
        self._limits = [config.limits(kind) for kind in TlpKind]
        self._classes = [_Class(*limits, deque()) for limits in self._limits]

    def ready_at(self, kind: TlpKind, payload_bytes: int, ready: int) -> int | None:
        """First time from `ready` on with enough credits; None if not even all known returns suffice."""
        most_headers, most_data = self._limits[kind]
        credits = self._classes[kind]
        credits.take_back(ready)
        headers = credits.headers if most_headers else 1
        missing = self._data_credits(kind, payload_bytes) - credits.data if most_data else 0
        if headers > 0 and missing <= 0:
            return ready
        for when, data in credits.returns:
            headers, missing = headers + 1, missing - data
            if headers > 0 and missing <= 0:
                return when
        return None

    def take(self, kind: TlpKind, payload_bytes: int, at: int) -> None:
        """Send a TLP at a time that `ready_at` has named."""
        most_headers, most_data = self._limits[kind]
        credits = self._classes[kind]
        credits.take_back(at)
        credits.headers -= 1
        credits.data -= self._data_credits(kind, payload_bytes)
        assert credits.headers >= 0 or not most_headers, "a TLP left without its header credit"
        assert credits.data >= 0 or not most_data, "a TLP left without its data credits"

    def give_back(self, kind: TlpKind, payload_bytes: int, when: int) -> None:
        """The credits of a TLP that was let through come back at `when`, not before earlier ones."""
        returns = self._classes[kind].returns
        if any(self._limits[kind]):
            when = max(when, returns[-1][0]) if returns else when
            returns.append((when, self._data_credits(kind, payload_bytes)))

    def _data_credits(self, kind: TlpKind, payload_bytes: int) -> int:
        return -(-payload_bytes // CREDIT_BYTES) if self._limits[kind][1] else 0
