"""cocotb bench of the control port: every register over AXI4-Lite, against the card model's register file.

Parameter: `design`, a named design. What the kernel would do is done by the bench.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import cocotb
from cocotb.triggers import Combine, RisingEdge

from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.register_map import WINDOW_BYTES, WORD_BYTES, Access
from nearkv_sim.benches.csr_harness import WORD_MASK, ControlBench
from nearkv_sim.benches.harness import CLOCK_NS
from nearkv_sim.card.register_file import RegisterFile

_TIMEOUT_MS = 2  # 200,000 cycles
# Writes to these start or drop jobs; all others can be written at random.
_COMMANDS = (reg.CTRL, reg.RESET)
_WORDS = [
    (register, register.offset + at)
    for register in reg.REGISTERS
    for at in range(0, register.size_bytes, WORD_BYTES)
]


async def bench_of(dut: Any) -> ControlBench:
    """A bench after its reset."""
    bench = ControlBench(dut)
    await bench.start()
    return bench


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def every_word_of_the_window_after_reset(dut: Any) -> None:
    """Registers read their reset values, all other words 0, whatever is written to those."""
    bench = await bench_of(dut)
    model = RegisterFile(bench.design)
    used = {offset for _, offset in _WORDS}
    for offset in range(0, WINDOW_BYTES, WORD_BYTES):
        if offset not in used:
            await bench.host.write_dword(offset, WORD_MASK)
        assert await bench.host.read_dword(offset) == model.read_word(offset), hex(offset)


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def random_accesses_equal_the_model(dut: Any) -> None:
    """Words, halves and bytes at random; every channel pauses more and more."""
    bench = await bench_of(dut)
    model = RegisterFile(bench.design)
    words = [(register, offset) for register, offset in _WORDS if register not in _COMMANDS]
    for step in range(300):
        bench.pause(step / 400)
        register, offset = random.choice(words)
        size = random.choice((1, 2, 4))
        at = random.randrange(0, WORD_BYTES, size)
        piece = random.randbytes(size)
        await bench.host.write(offset + at, piece)
        written = int.from_bytes(piece, "little") << 8 * at
        if register.access is Access.READ_WRITE:
            kept = model.read_word(offset) & ~((1 << 8 * size) - 1 << 8 * at)
            written |= kept
        model.write_word(offset, written)
        _, other = random.choice(words)
        for seen in (offset, other):
            assert await bench.host.read_dword(seen) == model.read_word(seen), register.name


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def address_and_data_in_any_order(dut: Any) -> None:
    """Data long after their address, long before it, responses not taken; reads go on meanwhile."""
    bench = await bench_of(dut)
    for late in ("aw", "w", "b", "ar", "r"):
        for delay in (1, 2, 3, 8):
            value = random.getrandbits(32)
            bench.channels[late].set_pause_generator(itertools.chain([True] * delay, itertools.repeat(False)))
            await bench.host.write_dword(reg.BLOCK_COUNT.offset, value)
            assert await bench.host.read_dword(reg.BLOCK_COUNT.offset) == value
    # Writes are stuck for want of data; reads are not.
    bench.channels["w"].set_pause_generator(itertools.repeat(True))
    stuck = bench.host.init_write(reg.HEADS.offset, b"\x05\0\0\0")
    for _ in range(5):
        assert await bench.host.read_dword(reg.IDENTITY.offset) == reg.KERNEL_IDENTITY
    assert await bench.host.read_dword(reg.HEADS.offset) == 0
    assert not stuck.is_set()
    bench.channels["w"].clear_pause_generator()
    bench.channels["w"].pause = False
    await stuck.wait()
    assert await bench.host.read_dword(reg.HEADS.offset) == 5


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def both_directions_back_to_back(dut: Any) -> None:
    """A block of reads and one of writes at once, in the cycles that the interval allows, and not more."""
    bench = await bench_of(dut)
    count = 100

    async def write_all() -> None:
        await Combine(
            *[
                cocotb.start_soon(bench.host.write(reg.KEY_ADDRESS.offset, index.to_bytes(4, "little")))
                for index in range(count)
            ]
        )

    async def read_all() -> None:
        # One block of an address each would be reads of other registers.
        tasks = [cocotb.start_soon(bench.host.read_dword(reg.IDENTITY.offset)) for _ in range(count)]
        for task in tasks:
            assert await task == reg.KERNEL_IDENTITY

    started = cocotb.utils.get_sim_time("ns")
    await Combine(cocotb.start_soon(write_all()), cocotb.start_soon(read_all()))
    cycles = (cocotb.utils.get_sim_time("ns") - started) / CLOCK_NS
    assert 2 * count <= cycles <= 2 * count + 20, cycles
    assert await bench.read(reg.KEY_ADDRESS) == count - 1


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def a_job_from_start_to_acknowledgement(dut: Any) -> None:
    """The handshake of ap_ctrl_chain, the arguments of the job, its counters, its interrupt."""
    bench = await bench_of(dut)
    arguments = {
        argument: random.getrandbits(8 * argument.size_bytes) & argument.used_mask
        for argument in reg.ARGUMENTS
    }
    for argument, value in arguments.items():
        await bench.write(argument, value)
    await bench.write(reg.GIER, 1)
    await bench.write(reg.IER, 1)
    for _ in range(2):
        assert await bench.start_job()
        expected = 0
        for argument, value in arguments.items():
            await bench.write(argument, ~value & (1 << 8 * argument.size_bytes) - 1)
            expected |= value << ARGUMENTS[argument.name.lower()].offset
        assert dut.arguments.value.to_unsigned() == expected
        assert await bench.fields(reg.CTRL) == {"ap_start": 1}
        assert await bench.fields(reg.STATUS) == {"state": reg.JobState.RUNNING}
        for _ in range(3):
            await bench.pulse(add_tokens=5, add_streamed_bytes=128, add_written_bytes=255)
        dut.streamed_crc32c.value, dut.written_crc32c.value = 0x0123_4567, 0x89AB_CDEF
        before = await bench.read(reg.CYCLES)
        assert 0 < before < await bench.read(reg.CYCLES)
        assert dut.interrupt.value == 0
        await bench.pulse(finish=1)
        assert dut.interrupt.value == 1
        ended = await bench.read(reg.CYCLES)
        assert ended == await bench.read(reg.CYCLES) > before
        assert await bench.read(reg.TOKENS) == 15
        assert await bench.read(reg.STREAMED_BYTES) == 384
        assert await bench.read(reg.WRITTEN_BYTES) == 765
        assert await bench.read(reg.STREAMED_CRC32C) == 0x0123_4567
        assert await bench.read(reg.WRITTEN_CRC32C) == 0x89AB_CDEF
        assert await bench.fields(reg.STATUS) == {"state": reg.JobState.DONE}
        assert await bench.fields(reg.CTRL) == {"ap_done": 1, "ap_idle": 1, "ap_ready": 1}
        assert await bench.fields(reg.EVENTS) == {"done": 1}
        assert await bench.read(reg.EVENTS) == 0
        await bench.write(reg.ISR, 1)
        assert dut.interrupt.value == 0
        assert await bench.read(reg.ISR) == 0
        await bench.write(reg.CTRL, reg.CTRL.mask("ap_continue"))
        assert await bench.fields(reg.CTRL) == {"ap_idle": 1}
        arguments = {argument: await bench.read(argument) for argument in arguments}


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def cycles_are_counted_to_the_cycle(dut: Any) -> None:
    """From the pulse on `start` to that of `finish`, both counted."""
    bench = await bench_of(dut)
    for wait in (0, 1, 37):
        writing = cocotb.start_soon(bench.write(reg.CTRL, reg.CTRL.mask("ap_start")))
        await RisingEdge(dut.start)
        for _ in range(wait):
            await RisingEdge(dut.clk)
        await bench.pulse(finish=1)
        await writing
        assert await bench.read(reg.CYCLES) == wait + 1


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def interrupts_are_masked_by_both_enables(dut: Any) -> None:
    """IER keeps the event out of ISR, GIER keeps ISR off the line."""
    bench = await bench_of(dut)
    for gier, ier in itertools.product((0, 1), repeat=2):
        await bench.write(reg.GIER, gier)
        await bench.write(reg.IER, ier)
        assert await bench.start_job()
        await bench.pulse(finish=1)
        assert await bench.read(reg.ISR) == ier
        assert dut.interrupt.value == (gier and ier)
        await bench.write(reg.GIER, 1)
        assert dut.interrupt.value == ier
        await bench.write(reg.ISR, ier)
        assert dut.interrupt.value == 0


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def the_first_error_stays_until_reset(dut: Any) -> None:
    """Two faults and a start while busy: the first is kept, later jobs fail at once, RESET forgives."""
    bench = await bench_of(dut)

    def fault(code: reg.ErrorCode, address: int, token: int) -> int:
        values = {"code": code, "address": address, "token": token, "tokens": token // 7}
        return int(Fault.const(values).as_value().value)

    assert await bench.start_job()
    await bench.pulse(fault_valid=1, fault=fault(reg.ErrorCode.KEY_ADDRESS, (1 << 64) - 4096, 77))
    await bench.pulse(fault_valid=1, fault=fault(reg.ErrorCode.SHIFT, 5, 6))
    assert not await bench.start_job()  # while busy: an error too, but not the first
    await bench.pulse(finish=1)
    for _ in range(2):
        assert await bench.read(reg.ERROR_CODE) == reg.ErrorCode.KEY_ADDRESS
        assert await bench.read(reg.ERROR_ADDRESS) == (1 << 64) - 4096
        assert await bench.read(reg.ERROR_TOKEN) == 77
        assert await bench.read(reg.ERROR_TOKENS) == 11
        assert await bench.fields(reg.STATUS) == {"state": reg.JobState.FAILED}
        assert await bench.fields(reg.CTRL) == {"ap_done": 1, "ap_idle": 1, "ap_ready": 1}
        assert await bench.fields(reg.EVENTS) == {"failed": 1}
        assert not await bench.start_job()  # ends by itself
    await bench.write(reg.RESET, 1)
    assert await bench.read(reg.ERROR_CODE) == await bench.read(reg.ERROR_ADDRESS) == 0
    assert await bench.start_job()
    assert not await bench.start_job()
    assert await bench.fields(reg.STATUS) == {"state": reg.JobState.RUNNING}
    await bench.pulse(finish=1)
    assert await bench.read(reg.ERROR_CODE) == reg.ErrorCode.START_WHILE_BUSY
    assert await bench.fields(reg.STATUS) == {"state": reg.JobState.FAILED}
    # A fault in the very cycle of the end counts.
    await bench.write(reg.RESET, 1)
    assert await bench.start_job()
    await bench.pulse(finish=1, fault_valid=1, fault=fault(reg.ErrorCode.SCORE_OVERFLOW, 0, 0))
    assert await bench.fields(reg.STATUS) == {"state": reg.JobState.FAILED}
    assert await bench.read(reg.ERROR_CODE) == reg.ErrorCode.SCORE_OVERFLOW


@cocotb.test(timeout_time=_TIMEOUT_MS, timeout_unit="ms")
async def reset_drops_a_job(dut: Any) -> None:
    """RESET pulses `abort` and puts every register back, in the middle of a job."""
    bench = await bench_of(dut)
    model = RegisterFile(bench.design)
    for argument in reg.ARGUMENTS:
        await bench.write(argument, (1 << 8 * argument.size_bytes) - 1)
    await bench.write(reg.GIER, 1)
    await bench.write(reg.ISR, 1)
    assert await bench.start_job()
    assert dut.interrupt.value == 1
    await bench.write(reg.RESET, 0)
    assert await bench.fields(reg.STATUS) == {"state": reg.JobState.RUNNING}
    writing = cocotb.start_soon(bench.write(reg.RESET, 1))
    await RisingEdge(dut.abort)
    await writing
    assert dut.interrupt.value == 0
    for register, offset in _WORDS:
        assert await bench.host.read_dword(offset) == model.read_word(offset), register.name
    assert await bench.start_job()
