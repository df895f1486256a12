"""Widths of streams of bytes: by hand, at every ratio against numpy, at full rate, by proof."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.stream.width import Narrow, Widen
from nearkv_sim.formal import Status, prove_order, prove_ready_independent, prove_stream_contract


def exchange(unit, beats, pauses=0.0, cycles=400):
    """Beats of `o` and the cycles in which they leave."""
    rng = np.random.default_rng(len(beats))
    out, at = [], []

    async def testbench(ctx):
        sent, offers = 0, False
        for cycle in range(cycles):
            offers = sent < len(beats) and (offers or rng.random() >= pauses)
            takes = rng.random() >= pauses
            ctx.set(unit.i.valid, offers)
            ctx.set(unit.o.ready, takes)
            if offers:
                ctx.set(unit.i.payload, int(beats[sent]))
            if offers and ctx.get(unit.i.ready):
                sent, offers = sent + 1, False
            if takes and ctx.get(unit.o.valid):
                out.append(ctx.get(unit.o.payload))
                at.append(cycle)
            await ctx.tick()

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return out, at


def test_by_hand():
    """First byte lowest; a fraction of a wide beat waits."""
    assert exchange(Widen(1, 4), [1, 2, 3, 4, 5, 6, 7, 8, 9])[0] == [0x04030201, 0x08070605]
    assert exchange(Narrow(4, 2), [0x04030201, 0x08070605])[0] == [0x0201, 0x0403, 0x0605, 0x0807]


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_every_ratio_with_pauses_and_at_full_rate(ratio):
    data = np.random.default_rng(ratio).integers(0, 256, 64, np.uint8)
    wide = data.view(f"<u{ratio}").tolist()
    for pauses in (0.0, 0.5):
        widened, wide_at = exchange(Widen(1, ratio), data, pauses)
        narrowed, narrow_at = exchange(Narrow(ratio, 1), wide, pauses)
        assert widened == wide
        assert narrowed == data.tolist()
        if not pauses:
            assert wide_at == list(range(ratio, len(data) + 1, ratio))
            assert narrow_at == list(range(1, len(data) + 1))


@pytest.mark.parametrize("make", [lambda: Widen(1, 1), lambda: Narrow(1, 1)])
def test_equal_widths_pass_tokens_in_order(make):
    assert prove_order(make, capacity=1).status is Status.PROVED


@pytest.mark.parametrize("make", [lambda: Widen(1, 4), lambda: Narrow(4, 1)])
def test_streams_keep_the_contract(make):
    assert prove_stream_contract(make).status is Status.PROVED
    assert prove_ready_independent(make).status is Status.PROVED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Widen(4, 12), r"wide_bytes is 12 with narrow_bytes 4; allowed: a power of two times"),
        (lambda: Narrow(4, 8), r"wide_bytes is 4 with narrow_bytes 8"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
