"""Trials of the fault matrix that a fault plan provokes: every TLP of a job can suffer."""

from __future__ import annotations

from collections.abc import Iterator

from nearkv_hdl.spec import registers as reg
from nearkv_sim.pcie.fault_trial import PS_PER_US, Ending, FaultName, Stage, Trial
from nearkv_sim.pcie.faults import Fault, FaultKind, TlpRole, roles_of

ROLES = {
    Stage.REGISTER: (TlpRole.REGISTER_READ, TlpRole.REGISTER_WRITE, TlpRole.REGISTER_COMPLETION),
    Stage.QUERY_LOAD: (TlpRole.DOORBELL, TlpRole.QUERY_LOAD, TlpRole.QUERY_COMPLETION),
    Stage.KEY_READ: (TlpRole.KEY_READ, TlpRole.KEY_WRITE, TlpRole.KEY_COMPLETION),
    Stage.RESULT_WRITE: (TlpRole.RESULT_WRITE,),
    Stage.COMPLETION: (TlpRole.DMA_COMPLETION, TlpRole.MSI),
}
NAMES = {
    FaultKind.DROPPED: FaultName.DROPPED,
    FaultKind.DUPLICATED: FaultName.DUPLICATED,
    FaultKind.CORRUPTED: FaultName.CORRUPTED,
    FaultKind.POISONED: FaultName.POISONED,
    FaultKind.DELAYED: FaultName.DELAYED,
    FaultKind.UR: FaultName.UR,
    FaultKind.CA: FaultName.CA,
    FaultKind.TIMEOUT: FaultName.TIMEOUT,
    FaultKind.LOST_MSI: FaultName.LOST_MSI,
    FaultKind.LINK_DOWN: FaultName.LINK_DOWN,
}
# Deadlines: an undisturbed job of two blocks takes 90 us.
CURED_PS = 150 * PS_PER_US  # by the link layer: replay timers and retraining take microseconds
TIMED_OUT_PS = 250 * PS_PER_US  # a completion timeout of 50 us, and the transfer once more
JOB_AGAIN_PS = 1300 * PS_PER_US  # the driver's deadline, and the job once more
COMMAND_AGAIN_PS = 6000 * PS_PER_US  # a word that is polled in vain for 5 ms, and the command once more
GIVEN_UP_PS = 12_000 * PS_PER_US  # both of it twice
# Stores of a job in their order, and those of them without which a job over two blocks does not do what it
# should behind one over one block: the words that differ.
STORES = [
    *(f"{register.name} word {word}" for register in reg.ARGUMENTS for word in range(register.words)),
    *("CTRL ap_start", "ISR", "CTRL ap_continue"),
]
SPOILING = {
    *("DESCRIPTOR_ADDRESS word 0", "KEY_ADDRESS word 0", "KEY_BYTES word 0", "QUERY_ADDRESS word 0"),
    *("QUERY_BYTES word 0", "RESULT_ADDRESS word 0", "RESULT_BYTES word 0", "BLOCK_COUNT word 0"),
    "CTRL ap_start",
}
BRIEFLY_PS, LATE_PS = 2 * PS_PER_US, 70 * PS_PER_US
SHORT_PS, LONG_PS, FOR_EVER_PS = 5 * PS_PER_US, 200 * PS_PER_US, 0  # of a link that is down

_COMPLETIONS = (TlpRole.REGISTER_COMPLETION, TlpRole.QUERY_COMPLETION, TlpRole.KEY_COMPLETION)
_REPEATED_AT_ONCE = (
    *(TlpRole.REGISTER_READ, TlpRole.REGISTER_COMPLETION),
    *(TlpRole.KEY_READ, TlpRole.KEY_WRITE, TlpRole.KEY_COMPLETION),
)
_End = tuple[Ending, int, str]
_CURED: _End = (Ending.SUCCESS, CURED_PS, "")
_TIMED_OUT: _End = (Ending.RETRY, TIMED_OUT_PS, "")
_JOB_AGAIN: _End = (Ending.RETRY, JOB_AGAIN_PS, "")
_COMMAND_AGAIN: _End = (Ending.RETRY, COMMAND_AGAIN_PS, "")


def link_trials() -> Iterator[Trial]:
    """All of them, by fault, stage and TLP."""
    for kind, name in NAMES.items():
        for stage, roles in ROLES.items():
            for role in roles:
                if role in roles_of(kind):
                    for what, fault, (ending, deadline_ps, cause) in _variants(kind, role):
                        yield Trial(name, stage, what, fault, ending, deadline_ps, cause)


def _variants(kind: FaultKind, role: TlpRole) -> Iterator[tuple[str, Fault, _End]]:
    """Faults of a kind for a role, and how a job with one ends."""
    first = role.value
    match kind:
        case FaultKind.DROPPED | FaultKind.DUPLICATED:
            yield first, Fault(role, 0, kind), _CURED
        case FaultKind.CORRUPTED:
            yield first, Fault(role, 0, kind), _CURED
            yield f"{first}, 6 times", Fault(role, 0, kind, count=6), _CURED
        case FaultKind.DELAYED:
            yield first, Fault(role, 0, kind, delay_ps=BRIEFLY_PS), _CURED
            if role in _COMPLETIONS:
                yield f"{first}, beyond its timeout", Fault(role, 0, kind, delay_ps=LATE_PS), _TIMED_OUT
        case FaultKind.UR | FaultKind.CA | FaultKind.TIMEOUT:
            yield first, Fault(role, 0, kind), _TIMED_OUT
        case FaultKind.LOST_MSI:
            yield first, Fault(role, 0, kind), (Ending.SUCCESS, JOB_AGAIN_PS, "")
        case FaultKind.POISONED:
            yield from _poisoned(role)
        case FaultKind.LINK_DOWN:
            yield from _down(role)


def _poisoned(role: TlpRole) -> Iterator[tuple[str, Fault, _End]]:
    """What carries data and is not performed."""
    if role is TlpRole.REGISTER_WRITE:
        for index, store in enumerate(STORES):
            end = _JOB_AGAIN if store in SPOILING else _CURED
            yield f"store of {store}", Fault(role, index, FaultKind.POISONED), end
        return
    ends = {
        TlpRole.DOORBELL: _COMMAND_AGAIN,
        TlpRole.DMA_COMPLETION: _COMMAND_AGAIN,
        TlpRole.KEY_READ: (Ending.ERROR, CURED_PS, "KEY_CRC"),
        TlpRole.MSI: (Ending.SUCCESS, JOB_AGAIN_PS, ""),
    }
    yield role.value, Fault(role, 0, FaultKind.POISONED), ends.get(role, _TIMED_OUT)


def _down(role: TlpRole) -> Iterator[tuple[str, Fault, _End]]:
    """Links that come back soon, after more than two completion timeouts, or never.

    A read is repeated at once: one of a register, or of the drive, meets the longer fault twice. Who polls
    a word for 5 ms, or waits for the driver's deadline, does not.
    """
    for what, down_ps in (("5 us", SHORT_PS), ("200 us", LONG_PS), ("for ever", FOR_EVER_PS)):
        fault = Fault(role, 0, FaultKind.LINK_DOWN, delay_ps=down_ps)
        end: _End = (Ending.SUCCESS, JOB_AGAIN_PS, "") if role is TlpRole.MSI else _COMMAND_AGAIN
        if not down_ps or (down_ps == LONG_PS and role in _REPEATED_AT_ONCE):
            end = Ending.ERROR, GIVEN_UP_PS, "failed twice"
        yield f"{role.value}, {what}", fault, end
