"""The statuses of a job's commands, as one result."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream

from nearkv_hdl.bus.transfer import TransferCode
from nearkv_hdl.migrate.moves import BYTES_BITS
from nearkv_hdl.migrate.route import join, through_queue


def collect_statuses(m: Module, what: str, managers, choice, jobs: int):
    """Take the statuses of one kind of manager, job by job.

    They are taken as they come, whatever the other side of a job has still to do: a manager stops at
    statuses that wait.

    Args:
        m: what it is part of.
        what: name of the kind.
        managers: the device's, then the far side's.
        choice: whether the jobs under way use the latter.
        jobs: that may be under way.

    Returns:
        Two streams, both for up to `jobs` jobs: of the commands each job makes, into it, and out of it
        whether one of them failed.

    """
    owes = stream.Signature(BYTES_BITS).create()
    fails = stream.Signature(1).create()
    debt = stream.Signature(BYTES_BITS).create()
    result = stream.Signature(1).create()
    through_queue(m, f"{what}_owed", owes, debt, jobs)
    through_queue(m, f"{what}_results", result, fails, jobs)
    status = stream.Signature(managers[0].o_status.payload.shape()).create()
    join(m, [manager.o_status for manager in managers], status, choice)
    seen = Signal(BYTES_BITS, name=f"{what}_seen")
    failed = Signal(name=f"{what}_failed")
    complete = Signal(name=f"{what}_complete")
    m.d.comb += [
        complete.eq(seen == debt.payload),
        status.ready.eq(debt.valid & ~complete),
        result.valid.eq(debt.valid & complete),
        result.payload.eq(failed),
        debt.ready.eq(complete & result.ready),
    ]
    with m.If(debt.valid & debt.ready):
        m.d.sync += [seen.eq(0), failed.eq(0)]
    with m.Elif(status.valid & status.ready):
        m.d.sync += [seen.eq(seen + 1), failed.eq(failed | (status.payload.code != TransferCode.OKAY))]
    return owes, fails
