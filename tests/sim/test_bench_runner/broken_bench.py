"""cocotb tests with known outcomes, for the tests of the runner."""

import random

import cocotb
from cocotb.triggers import RisingEdge, Timer

from nearkv_sim.benches.harness import StreamBench, parameters, report


@cocotb.test()
async def passes(dut):
    words = [1, 2, 3]
    bench = StreamBench(dut, inputs=("i",), outputs=("o",))
    await bench.start()
    outputs, cycles = await bench.run({"i": words}, {"o": 3})
    assert outputs == {"o": words}
    report(cycles=cycles, parameters=parameters(), draw=random.getrandbits(32))


@cocotb.test()
async def expects_a_beat_too_few(dut):
    bench = StreamBench(dut, inputs=("i",), outputs=("o",))
    await bench.start()
    await bench.run({"i": [1, 2, 3]}, {"o": 2})


@cocotb.test(timeout_time=10, timeout_unit="us")
async def waits_for_ever(dut):
    bench = StreamBench(dut, inputs=("i",), outputs=("o",))
    await bench.start()
    await bench.run({"i": [1]}, {"o": 2})


@cocotb.test()
async def hangs(_dut):
    await Timer(1, unit="ns")
    while True:
        pass


@cocotb.test()
async def broken_rules_are_seen(dut):
    """The component breaks a rule of streams; the harness must say so."""
    bench = StreamBench(dut, inputs=("i",), outputs=("o",))
    await bench.start()
    await RisingEdge(dut.clk)
    await bench.run({"i": list(range(50))}, {"o": 50}, output_pause=0.7)
