"""The adder tree: every value at small widths, its latency, and its refusals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.arith.adder_tree import AdderTree
from nearkv_hdl.spec.formats import CODE, Format


def sums(tree: AdderTree, rows: list[tuple[int, ...]]) -> list[int]:
    """Feed one row per cycle; what leaves `latency` cycles later."""
    seen = []

    async def bench(ctx):
        for row in [*rows, *[(0,) * tree.terms] * tree.latency]:
            for port, value in zip(tree.i, row, strict=True):
                ctx.set(port, value)
            seen.append(ctx.get(tree.o))
            await ctx.tick()
        seen.append(ctx.get(tree.o))

    simulator = Simulator(tree)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen[tree.latency : tree.latency + len(rows)]


def test_four_numbers_by_hand():
    assert sums(AdderTree(CODE, 4), [(1, 2, 3, 4), (-128, -128, -128, -128)]) == [10, -512]


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("terms", [2, 4])
def test_every_combination_of_two_bit_numbers(signed, terms):
    term = Format(2, signed=signed)
    rows = list(product(range(term.min, term.max + 1), repeat=terms))
    assert sums(AdderTree(term, terms), rows) == [sum(row) for row in rows]


def test_random_wide_sums():
    rows = np.random.default_rng(1).integers(-128, 128, (50, 64))
    rows[0], rows[1] = -128, 127
    assert sums(AdderTree(CODE, 64), [tuple(row) for row in rows.tolist()]) == rows.sum(axis=1).tolist()


def test_one_term_is_a_wire():
    tree = AdderTree(CODE, 1)
    seen = []

    async def bench(ctx):
        for value in (5, -128):
            ctx.set(tree.i[0], value)
            seen.append(ctx.get(tree.o))

    simulator = Simulator(tree)  # no clock: there is nothing to tick
    simulator.add_testbench(bench)
    simulator.run()
    assert (seen, tree.latency, tree.interval) == ([5, -128], 0, 1)


@pytest.mark.parametrize(("terms", "latency"), [(2, 1), (64, 6)])
def test_latency_is_one_rank_per_level(terms, latency):
    tree = AdderTree(CODE, terms)
    assert (tree.latency, tree.interval) == (latency, 1)
    assert len(tree.o) == CODE.sum_of(terms).width
    # One pulse leaves exactly `latency` cycles later, alone.
    pulse = [(1,) + (0,) * (terms - 1), (0,) * terms]
    assert sums(tree, pulse) == [1, 0]


@pytest.mark.parametrize("terms", [0, 3, -4])
def test_other_term_counts_are_refused(terms):
    with pytest.raises(ValueError, match=f"terms is {terms}; allowed: a power of two"):
        AdderTree(CODE, terms)
