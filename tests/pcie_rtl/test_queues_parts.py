"""Indices of the queues, entry checks and the interrupt vector against plain Python, at random."""

import random

import pytest
from amaranth.sim import Simulator

from nearkv_hdl.pcie.msix import MsixVector
from nearkv_hdl.pcie.queue_entry import EntryCheck
from nearkv_hdl.pcie.queue_indices import QueueIndices
from nearkv_hdl.spec.queue_entries import (
    OPCODE_SCORE,
    RESERVED_BITS,
    SUBMISSION,
    SUBMISSION_BYTES,
    GenericStatus,
)
from nearkv_hdl.spec.queue_registers import FatalCause
from nearkv_sim.benches.pcie_queues_model import check_entry

GOOD = dict.fromkeys(SUBMISSION, 64) | dict.fromkeys(RESERVED_BITS, 0) | {"opcode": OPCODE_SCORE}


def simulate(dut, testbench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


@pytest.mark.parametrize(("sq_last", "cq_last"), [(1, 1), (2, 6), (7, 3), (4095, 4095)])
def test_indices(sq_last, cq_last):
    """The device serves what it may, the host rings right and, now and then, wrong doorbells."""
    random.seed(sq_last)
    dut = QueueIndices()
    sq, cq = sq_last + 1, cq_last + 1
    rounds = {"sq": 0, "cq": 0}

    async def testbench(ctx):
        ctx.set(dut.sq_last, sq_last)
        ctx.set(dut.cq_last, cq_last)
        submitted = fetched = posted = taken = 0
        for _ in range(3000):
            while random.random() < 0.5 and submitted - taken < min(sq_last, 40):
                submitted += 1
            if random.random() < 0.5:
                taken = random.randint(taken, posted)
            ctx.set(dut.sq_tail, submitted % sq)
            ctx.set(dut.cq_head, taken % cq)
            await ctx.tick()
            used = posted - taken
            wrong = {
                FatalCause.NONE: (submitted % sq, taken % cq),
                FatalCause.SQ_DOORBELL: (random.randint(sq, 65535), taken % cq),
                FatalCause.CQ_DOORBELL: (submitted % sq, random.randint(cq, 65535)),
            }
            beyond = used + 1 + random.randrange(cq - used - 1) if used < cq_last else 0
            if beyond:
                wrong[None] = (submitted % sq, (taken + beyond) % cq)
            cause = random.choice(list(wrong))
            ctx.set(dut.sq_tail, wrong[cause][0])
            ctx.set(dut.cq_head, wrong[cause][1])
            assert ctx.get(dut.wrong) == (FatalCause.CQ_DOORBELL if cause is None else cause)
            await ctx.tick()
            ctx.set(dut.sq_tail, submitted % sq)
            ctx.set(dut.cq_head, taken % cq)
            assert ctx.get(dut.wrong) == FatalCause.NONE
            work, room = submitted > fetched, used < cq_last
            assert (ctx.get(dut.work), ctx.get(dut.room)) == (work, room)
            assert ctx.get(dut.sq_head) == fetched % sq
            assert ctx.get(dut.cq_tail) == posted % cq
            assert ctx.get(dut.phase) == 1 - posted // cq % 2
            serves = work and room and random.random() < 0.8
            ctx.set(dut.fetched, serves)
            ctx.set(dut.posted, serves)
            fetched, posted = fetched + serves, posted + serves
            await ctx.tick()
            ctx.set(dut.fetched, 0)
            ctx.set(dut.posted, 0)
        rounds["sq"], rounds["cq"] = fetched // sq, posted // cq
        ctx.set(dut.clear, 1)
        await ctx.tick()
        assert (ctx.get(dut.sq_head), ctx.get(dut.cq_tail), ctx.get(dut.phase)) == (0, 0, 1)

    simulate(dut, testbench)
    if sq_last < 4095:
        assert rounds["sq"] > 5
        assert rounds["cq"] > 5


def test_entries():
    """Each field alone wrong, several at once, and bytes at random."""
    random.seed(5)
    dut = EntryCheck()
    entries = []
    for _ in range(400):
        fields = GOOD | {name: random.choice((0, 1, 64)) for name in random.sample(sorted(SUBMISSION), 2)}
        entries.append(
            b"".join(fields[name].to_bytes(field.size_bytes, "little") for name, field in SUBMISSION.items())
        )
    entries += [random.randbytes(SUBMISSION_BYTES) for _ in range(20)]
    good = b"".join(GOOD[name].to_bytes(field.size_bytes, "little") for name, field in SUBMISSION.items())
    flags = SUBMISSION["flags"].offset
    entries += [good[:flags] + bytes([1 << bit]) + good[flags + 1 :] for bit in range(8)]
    found = []

    async def testbench(ctx):
        for entry in entries:
            ctx.set(dut.entry.as_value(), int.from_bytes(entry, "little"))
            found.append((ctx.get(dut.code), ctx.get(dut.place)))
            await ctx.delay(1e-6)

    simulator = Simulator(dut)
    simulator.add_testbench(testbench)
    simulator.run()
    assert found == [check_entry(entry) for entry in entries]
    assert len(set(found)) > 10
    refused = (GenericStatus.INVALID_FIELD, flags)
    assert found[-8:] == [(GenericStatus.SUCCESS, 0)] + [refused] * 7, "a flag that means nothing"


def test_vector():
    """Messages, pending bit and mask, cycle by cycle."""
    random.seed(6)
    dut = MsixVector()
    sent = []

    async def testbench(ctx):
        waits = False
        for _ in range(3000):
            inputs = {
                "event": random.random() < 0.2,
                "clear": random.random() < 0.05,
                "enable": random.random() < 0.9,
                "function_mask": random.random() < 0.3,
                "vector_mask": random.random() < 0.3,
            }
            for name, value in inputs.items():
                ctx.set(getattr(dut, name), value)
            masked = inputs["function_mask"] or inputs["vector_mask"]
            assert ctx.get(dut.pending) == (waits and masked)
            assert ctx.get(dut.send) == (waits and not masked)
            taken = waits and not masked and random.random() < 0.5
            ctx.set(dut.taken, taken)
            sent.append(taken)
            waits = (waits and not taken) or inputs["event"]
            waits = waits and inputs["enable"] and not inputs["clear"]
            await ctx.tick()

    simulate(dut, testbench)
    assert sum(sent) > 100
