"""What a trial of the fault matrix is: a fault at a stage of a job, its provocation, and how it must end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nearkv_sim.pcie.faults import Fault

PS_PER_US = 10**6
JOB_TIMEOUT_PS = 1000 * PS_PER_US  # the driver's deadline in all trials


class FaultName(Enum):
    """Rows of the matrix."""

    DROPPED = "dropped"
    DUPLICATED = "duplicated"
    CORRUPTED = "corrupted"
    POISONED = "poisoned"
    DELAYED = "delayed"
    UR = "UR"
    CA = "CA"
    TIMEOUT = "timeout"
    LOST_MSI = "lost MSI"
    LINK_DOWN = "link down"
    RESET = "reset in mid-job"
    ILLEGAL_DESCRIPTOR = "illegal descriptor"
    OUTSIDE = "address outside the window"
    ZERO_LENGTH = "zero length"
    MISALIGNED = "misaligned"
    OVERLAPPING = "overlapping"
    WRAP_AROUND = "queue wrap-around"
    DOORBELL = "doorbell out of range"


class Stage(Enum):
    """Columns of the matrix, in the order of a job."""

    REGISTER = "register"  # loads and stores of the kernel's registers
    QUERY_LOAD = "query load"  # descriptors and query codes: host to card, card's memory to kernel
    KEY_READ = "key read"  # keys: drive to card, card's memory to kernel
    RESULT_WRITE = "result write"  # scores: kernel to card's memory, card to host
    COMPLETION = "completion"  # the word that the host polls, the interrupt, the completion queue


class Ending(Enum):
    """How a job may end. Anything else is a defect."""

    SUCCESS = "success"
    RETRY = "one retry"  # of a transfer or of the job
    ERROR = "error"  # one that names the cause


@dataclass(frozen=True)
class HostileJob:
    """A job whose arguments are changed behind the driver's back, on every attempt.

    Attributes:
        words: new value from old of register words, by offset in bytes.
        descriptor: new value from old of fields of the first descriptor.

    """

    words: Mapping[int, Callable[[int], int]] = field(default_factory=dict)
    descriptor: Mapping[str, Callable[[int], int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reset:
    """Somebody else writes RESET so long after the start, or at the interrupt if that is earlier; once.

    Attributes:
        after_ps: 0 for just before the start.

    """

    after_ps: int


@dataclass(frozen=True)
class BadCall:
    """A call of the transport that it must refuse.

    Attributes:
        method: of the transport.
        arguments: of the call.

    """

    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class NativeTest:
    """A test of the bench `pcie_native_faults_bench`, for what only the native mode's queues have.

    Attributes:
        name: of the test.

    """

    name: str


@dataclass(frozen=True)
class Trial:
    """One way to have a fault at a stage.

    Attributes:
        fault, stage: the cell.
        what: where it hits, unique in its cell.
        provocation: what is done.
        ending: how the job must end.
        deadline_ps: simulated time from its first transfer to its end, at most.
        cause: what an error must name.

    """

    fault: FaultName
    stage: Stage
    what: str
    provocation: Fault | HostileJob | Reset | BadCall | NativeTest
    ending: Ending
    deadline_ps: int
    cause: str = ""

    @property
    def name(self) -> str:
        """Unique in the matrix."""
        return f"{self.fault.value}, {self.stage.value}: {self.what}"

    @property
    def expected(self) -> str:
        """The end in words."""
        return f"{self.ending.value}: {self.cause}" if self.cause else self.ending.value
