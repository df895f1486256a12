"""The control port on every simulator, the register block on a table of its own, job control by itself."""

import subprocess
import sys

import pytest
from amaranth.sim import Simulator

from nearkv_hdl.bus.control import ControlPort
from nearkv_hdl.bus.csr import RegisterBlock
from nearkv_hdl.bus.job_control import JobControl
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.register_map import Access, Field, Register
from nearkv_hdl.spec.registers import ErrorCode, JobState
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCH = "nearkv_sim.benches.csr_bench"


@pytest.mark.parametrize("simulator", available_simulators())
def test_control_port(simulator):
    design = DESIGNS["smartssd_ku15p"]
    result = run_bench(
        ControlPort(design),
        BENCH,
        name="control-port",
        simulator=simulator,
        seed=11,
        parameters={"design": design.name},
    )
    assert len(result.passed) == 9


# Amaranth warns of components that were thrown away, once it has elaborated any.
IMPORTS = """
import gc
import nearkv_hdl.top.kernel
from nearkv_hdl.bus.job_control import JobControl
from nearkv_hdl.verilog import to_rtlil
to_rtlil(JobControl())
gc.collect()
"""


def test_importing_the_kernel_leaves_no_component_unused():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


STATE = Register("STATE", 0x00, 8, Access.READ_ONLY, 0, "")
OTHER = Register("OTHER", 0x10, 8, Access.READ_ONLY, 0, "")
FLAGS = Register("FLAGS", 0x20, 4, Access.CLEAR_ON_READ, 0, "", (Field("a", 0, 1, ""), Field("b", 4, 1, "")))
TOGGLES = Register("TOGGLES", 0x24, 4, Access.TOGGLE_ON_WRITE, 0, "", (Field("a", 1, 2, ""),))
SPARSE = Register(
    "SPARSE", 0x28, 4, Access.READ_WRITE, 0x300, "", (Field("low", 0, 4, ""), Field("high", 8, 16, ""))
)
RUN = Register("RUN", 0x2C, 4, Access.COMMAND, 0, "", (Field("go", 0, 1, ""), Field("stop", 3, 1, "")))
LABEL = Register("LABEL", 0x30, 8, Access.READ_ONLY, None, "")
TABLE = (STATE, OTHER, FLAGS, TOGGLES, SPARSE, RUN, LABEL)


def simulate(testbench):
    block = RegisterBlock(TABLE, {LABEL: 0x1122_3344_5566_7788})

    async def bench(ctx):
        await testbench(ctx, block)

    simulator = Simulator(block)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


async def read(ctx, block, offset):
    ctx.set(block.access.read_word, offset // 4)
    ctx.set(block.access.read, 1)
    value = ctx.get(block.access.read_data)
    await ctx.tick()
    ctx.set(block.access.read, 0)
    return value


async def write(ctx, block, offset, value, strobes=0xF):
    ctx.set(block.access.write_word, offset // 4)
    ctx.set(block.access.write_data, value)
    ctx.set(block.access.write_strobes, strobes)
    ctx.set(block.access.write, 1)
    await ctx.tick()
    ctx.set(block.access.write, 0)


def test_long_registers_are_read_without_tearing():
    async def testbench(ctx, block):
        ctx.set(block.state, 0x1_FFFF_FFFF)
        ctx.set(block.other, 0x7_0000_0009)
        assert await read(ctx, block, 4) == 1  # nothing kept yet: as it is
        assert await read(ctx, block, 0) == 0xFFFF_FFFF
        ctx.set(block.state, 0x2_0000_0000)
        assert await read(ctx, block, 0x14) == 7  # another upper word is not the kept one
        assert await read(ctx, block, 4) == 1
        assert await read(ctx, block, 0x10) == 9
        assert await read(ctx, block, 4) == 2
        assert await read(ctx, block, 0x30) == 0x5566_7788
        assert await read(ctx, block, 0x34) == 0x1122_3344
        assert await read(ctx, block, 0x0) == 0
        ctx.set(block.state, 0x3_0000_0000)
        ctx.set(block.clear, 1)
        await ctx.tick()
        ctx.set(block.clear, 0)
        assert await read(ctx, block, 4) == 3

    simulate(testbench)


def test_no_event_is_lost_to_a_read_or_toggle():
    async def testbench(ctx, block):
        ctx.set(block.flags_set.a, 1)
        await ctx.tick()
        ctx.set(block.flags_set.a, 0)
        ctx.set(block.flags_set.b, 1)  # in the cycle of the read
        assert await read(ctx, block, 0x20) == 0x01
        ctx.set(block.flags_set.b, 0)
        assert await read(ctx, block, 0x20) == 0x10
        assert await read(ctx, block, 0x20) == 0
        await write(ctx, block, 0x24, 0xFFFF_FFFF)
        assert await read(ctx, block, 0x24) == 0b110
        ctx.set(block.toggles_set.a, 0b01)
        await write(ctx, block, 0x24, 0b110)
        ctx.set(block.toggles_set.a, 0)
        assert await read(ctx, block, 0x24) == 0b010
        await write(ctx, block, 0x24, 0b110, strobes=0xE)
        assert await read(ctx, block, 0x24) == 0b010

    simulate(testbench)


def test_bits_outside_fields_keep_nothing():
    async def testbench(ctx, block):
        assert await read(ctx, block, 0x28) == 0x300
        await write(ctx, block, 0x28, 0xFFFF_FFFF)
        assert await read(ctx, block, 0x28) == 0x00FF_FF0F
        await write(ctx, block, 0x28, 0, strobes=0b0010)
        assert await read(ctx, block, 0x28) == 0x00FF_000F
        assert ctx.get(block.sparse.high) == 0xFF00

    simulate(testbench)


def test_a_command_lasts_one_cycle_and_reads_the_state():
    async def testbench(ctx, block):
        ctx.set(block.run.stop, 1)
        ctx.set(block.access.write, 1)
        ctx.set(block.access.write_word, 0x2C // 4)
        ctx.set(block.access.write_data, 0xFFFF_FFF1)
        ctx.set(block.access.write_strobes, 0b0001)
        assert ctx.get(block.run_command.go) == 1
        assert ctx.get(block.run_command.stop) == 0
        await ctx.tick()
        ctx.set(block.access.write, 0)
        assert ctx.get(block.run_command.go) == 0
        assert await read(ctx, block, 0x2C) == 0b1000

    simulate(testbench)


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match="register LABEL has no reset; allowed: a reset or a constant"):
        RegisterBlock(TABLE, {})
    with pytest.raises(ValueError, match="STATE is listed twice"):
        RegisterBlock((STATE, STATE), {})


@pytest.mark.parametrize(
    ("command", "state", "error"),
    [
        ("ap_continue", JobState.DONE, ErrorCode.NONE),
        ("ap_start", JobState.FAILED, ErrorCode.START_WHILE_BUSY),
    ],
)
def test_an_end_comes_after_the_command_of_its_cycle(command, state, error):
    job = JobControl()

    async def bench(ctx):
        ctx.set(job.ctrl_command.ap_start, 1)
        await ctx.tick()
        ctx.set(job.ctrl_command.ap_start, 0)
        await ctx.tick()
        assert (ctx.get(job.ctrl.ap_start), ctx.get(job.ctrl.ap_done)) == (1, 0)
        ctx.set(job.finish, 1)
        ctx.set(job.ctrl_command[command], 1)
        await ctx.tick()
        assert (ctx.get(job.ctrl.ap_start), ctx.get(job.ctrl.ap_done)) == (0, 1)
        assert (ctx.get(job.status.state), ctx.get(job.error_code)) == (state, error)

    simulator = Simulator(job)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
