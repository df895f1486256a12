"""Units alone in Amaranth's own simulator, cycle by cycle."""

import pytest
from amaranth.sim import Simulator

CYCLES = 60


@pytest.fixture
def simulate():
    return run


def run(unit, given, taken, *others, inputs=None):
    """Run for CYCLES cycles, with sources that never pause and sinks that are always ready.

    given: payloads by stream. taken: names of streams. others: testbenches. inputs: values of inputs.
    Returns by stream the (cycle, payload) of every transfer.
    """
    transfers = {name: [] for name in (*given, *taken)}

    def source(name):
        async def process(ctx):
            port, waiting = getattr(unit, name), list(given[name])
            for cycle in range(CYCLES):
                ctx.set(port.valid, bool(waiting))
                if waiting:
                    ctx.set(port.payload, waiting[0])
                _, _, ready = await ctx.tick().sample(port.ready)
                if waiting and ready:
                    transfers[name].append((cycle, waiting.pop(0)))

        return process

    def sink(name):
        async def process(ctx):
            port = getattr(unit, name)
            ctx.set(port.ready, 1)
            for cycle in range(CYCLES):
                _, _, valid, payload = await ctx.tick().sample(port.valid, port.payload)
                if valid:
                    transfers[name].append((cycle, payload))

        return process

    async def constants(ctx):
        for name, value in (inputs or {}).items():
            ctx.set(getattr(unit, name), value)

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    for testbench in (constants, *map(source, given), *map(sink, taken)):
        simulator.add_testbench(testbench)
    for testbench in others:
        simulator.add_testbench(testbench, background=True)
    simulator.run()
    return transfers
