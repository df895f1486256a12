"""Proofs that the kernel's readers and its writer get the windows of the job at hand, and only while it runs.

Whose window goes with a command is combinational. That a job's arguments stand still is proved on KernelCore
with registers and control as they are and the parts of the data path replaced by free outputs, so for
whatever these may do.
"""

from dataclasses import replace

import pytest
from amaranth.hdl import Assert, Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, DESCRIPTOR_BYTES
from nearkv_hdl.top.job_reads import JobReads
from nearkv_hdl.top.kernel_core import KernelCore
from nearkv_hdl.top.list_reads import ListReads
from nearkv_sim.formal import Bench, Status, prove

TINY = DESIGNS["tiny"]
MEMORIES = ("$mem_v2",)
STORED = (*MEMORIES, "$mul")
DATA_PATH = ("_reads", "_scorer", "_packer", "_result_crc", "_arguments", "_writer")


def status_of(bench, cut=STORED):
    return prove(bench.module, bench.free, cut=cut).status


def list_bench(query_base):
    """A command of lists is one read's own, with that read's window; none is taken in `clear`."""
    unit = ListReads(TINY)
    bench = Bench(unit)
    m, job, command = bench.module, unit.arguments, unit.command
    owners = (
        (unit.descriptor_read, job.descriptor_address, job.block_count * DESCRIPTOR_BYTES),
        (unit.header_read, job.key_address, job.key_bytes),
        (unit.query_read, getattr(job, query_base), job.query_bytes),
    )
    taken = [read.valid & read.ready for read, _, _ in owners]
    m.d.sync += [
        Assert((command.valid & command.ready) == Cat(taken).any(), "a command that nobody asked for"),
        Assert(~(command.valid & unit.clear), "a command between jobs"),
        Assert(sum(taken) <= 1, "two reads for one command"),
    ]
    for (read, base, nbytes), is_taken in zip(owners, taken, strict=True):
        with m.If(is_taken):
            m.d.sync += [
                Assert(unit.window_base == base, "another window"),
                Assert(unit.window_bytes == nbytes, "another size of window"),
                Assert(Value.cast(command.payload) == Value.cast(read.payload), "another command"),
            ]
    return bench


def test_lists_are_read_through_the_window_of_their_kind():
    # The size of the list is a product, here and there.
    assert status_of(list_bench("query_address"), MEMORIES) is Status.PROVED
    assert status_of(list_bench("key_address"), MEMORIES) is Status.REFUTED


def windows_bench(key_size):
    """What JobReads hands to the readers of its port."""
    unit = JobReads(TINY)
    bench = Bench(unit)
    job, port, lists = unit.arguments, unit._port, unit._lists
    bench.module.d.sync += [
        Assert(port.keys_window_base == job.key_address, "keys: another window"),
        Assert(port.keys_window_bytes == getattr(job, key_size), "keys: another size of window"),
        Assert(port.lists_window_base == lists.window_base, "lists: another window"),
        Assert(port.lists_window_bytes == lists.window_bytes, "lists: another size of window"),
        Assert(~(unit.clear & port.keys_command.valid), "a read of keys between jobs"),
    ]
    return bench


def masters_bench(key_size):
    """What JobReads hands to the readers of its further ports."""
    unit = JobReads(replace(TINY, key_masters=2, key_bank_bytes=BLOCK_ALIGN_BYTES))
    bench = Bench(unit)
    job, (master,) = unit.arguments, unit._masters.values()
    bench.module.d.sync += [
        Assert(master.window_base == job.key_address, "another window"),
        Assert(master.window_bytes == getattr(job, key_size), "another size of window"),
        Assert(~(unit.clear & master.i_command.valid), "a read of keys between jobs"),
    ]
    return bench


@pytest.mark.parametrize("bench_of", [windows_bench, masters_bench])
def test_readers_get_the_windows_of_the_arguments(bench_of):
    assert status_of(bench_of("key_bytes")) is Status.PROVED
    assert status_of(bench_of("query_bytes")) is Status.REFUTED


class FreeOutputs(wiring.Component):
    """Stands for a component of whatever behaviour: every output is a free input of the bench."""

    def __init__(self, name, signature):
        super().__init__(signature)
        self.outputs = {}
        for path, member, value in self.signature.flatten(self):
            if member.flow is Out:
                free = Signal(len(Value.cast(value)), name="__".join((name, *map(str, path))))
                self.outputs[free.name] = (Value.cast(value), free)

    def elaborate(self, _platform):
        m = Module()
        m.d.comb += [value.eq(free) for value, free in self.outputs.values()]
        return m


class ControlledKernel(wiring.Component):
    """KernelCore without its data path, beside the stream that a bench needs at least one of."""

    def __init__(self):
        self.core = KernelCore(TINY)
        for name in DATA_PATH:
            setattr(self.core, name, FreeOutputs(name, getattr(self.core, name).signature))
        members = self.core.signature.members
        super().__init__({**members, "i": In(stream.Signature(1, always_ready=True))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.core = core = self.core
        wiring.connect(m, wiring.flipped(self.s_axi_control), core.s_axi_control)
        wiring.connect(m, core.m_axi_gmem, wiring.flipped(self.m_axi_gmem))
        m.d.comb += self.interrupt.eq(core.interrupt)
        return m


def steady_bench(first_cycle):
    """While reads or writes may begin, the arguments are those of the first such cycle of the pass.

    Args:
        first_cycle: count that cycle's own change from the one before, too.

    """
    unit = ControlledKernel()
    bench, core = Bench(unit), unit.core
    for name in DATA_PATH:
        bench.free |= {port: free for port, (_, free) in getattr(core, name).outputs.items()}
    m = bench.module
    arguments, runs = Value.cast(core._control.arguments), Signal()
    before, ran, changed, stale = Signal.like(arguments), Signal(), Signal(), Signal()
    m.d.comb += [
        runs.eq(~core._reads.clear | core._writer.enable),
        changed.eq((ran | first_cycle) & (arguments != before)),
    ]
    m.d.sync += [before.eq(arguments), ran.eq(runs)]
    with m.If(core._writer.restart):
        m.d.sync += stale.eq(0)
    with m.Elif(changed):
        m.d.sync += stale.eq(1)
    with m.If(runs):
        m.d.sync += [
            Assert(~core._writer.restart, "a pass while the writer is restarted"),
            Assert(~changed & ~stale, "arguments changed under a job"),
        ]
    return bench


@pytest.mark.parametrize(("first_cycle", "status"), [(0, Status.PROVED), (1, Status.REFUTED)])
def test_arguments_stand_still_under_a_job(first_cycle, status):
    # Refuted: a job that RESET drops before its first cycle may get there with those of the next one.
    assert status_of(steady_bench(first_cycle)) is status
