"""Packed partials: arithmetic exhaustively at small widths, streams by proof."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from amaranth.hdl import Elaboratable, Module

from nearkv_hdl.pim.partial_packer import PartialPacker
from nearkv_hdl.pim.partial_unpacker import PartialUnpacker
from nearkv_hdl.pim.sum_codes import CodeToSum, GroupShift, SumToCode
from nearkv_hdl.spec.attention import SUM
from nearkv_sim.formal import (
    Status,
    prove_no_deadlock,
    prove_ready_independent,
    prove_stream_contract,
)
from nearkv_sim.formal.netlist import netlist_of
from nearkv_sim.formal.properties import DATA_PATH_CELLS, STORED_DATA_CELLS

SHIFTERS = ("$shl", "$sshl", "$shr", "$sshr")


class Driven(Elaboratable):
    """A part with constant inputs."""

    def __init__(self, part, **constants):
        self.part, self.constants = part, constants

    def elaborate(self, _platform):
        m = Module()
        m.submodules.part = self.part
        m.d.comb += [getattr(self.part, name).eq(value) for name, value in self.constants.items()]
        return m


def evaluate(part, inputs, values, **constants):
    """Outputs for every pattern of the inputs, registers read as wires."""
    netlist = netlist_of(Driven(part, **constants), inputs, {"o": part.o})
    return netlist.evaluate(values)["o"]


def signed_range(bits):
    return np.arange(-(1 << bits - 1), 1 << bits - 1)


def smallest_shift(largest):
    """In float64: the exponent of the smallest power of two above largest / 127.5, from 0."""
    return np.maximum(np.frexp(largest / 127.5)[1], 0)


@pytest.mark.parametrize(("sum_bits", "lanes"), [(9, 2), (16, 1), (18, 1)])
def test_the_shift_of_every_group_is_the_smallest(sum_bits, lanes):
    part = GroupShift(lanes, sum_bits)
    grid = np.meshgrid(*[signed_range(sum_bits)] * lanes)
    values = {f"x{lane}": axis.reshape(-1) for lane, axis in enumerate(grid)}
    inputs = {f"x{lane}": part.sums[lane] for lane in range(lanes)}
    found = evaluate(part, inputs, values, first=1, last=1, present=1)
    assert np.array_equal(found, smallest_shift(np.max([np.abs(axis) for axis in values.values()], axis=0)))


def test_shifts_at_every_threshold_of_full_width():
    ends = [(255 << e >> 1) + step for e in range(41) for step in (-2, -1, 0, 1)]
    ends += [1 << bit for bit in range(47)] + [(1 << 47) - 1]
    values = np.array([*ends, *(-end for end in ends), -(1 << 47)])
    part = GroupShift(1)
    found = evaluate(part, {"x0": part.sums[0]}, {"x0": values}, first=1, last=1, present=1)
    assert np.array_equal(found, smallest_shift(np.abs(values)))


@pytest.mark.parametrize("sum_bits", [9, 16, 18])
def test_every_sum_under_every_shift_that_suffices(sum_bits):
    sums = signed_range(sum_bits)
    part = SumToCode(sum_bits)
    pairs = [(sums[smallest_shift(np.abs(sums)) <= e], e) for e in range(sum_bits - 6)]
    values = {
        "sum": np.concatenate([x for x, _ in pairs]),
        "shift": np.concatenate([np.full(len(x), e) for x, e in pairs]),
    }
    found = evaluate(part, {"sum": part.sum, "shift": part.shift}, values, enable=1)
    expected = np.floor(np.ldexp(values["sum"].astype(np.float64), -values["shift"]) + 0.5).astype(int)
    assert np.abs(expected).max() == 127
    assert np.array_equal(found, expected & 0xFF)


def test_every_code_under_every_shift():
    part = CodeToSum()
    codes, shifts = (axis.reshape(-1) for axis in np.meshgrid(signed_range(8), np.arange(42)))
    found = evaluate(
        part, {"code": part.code, "shift": part.shift}, {"code": codes, "shift": shifts}, enable=1
    )
    expected = np.clip(codes << shifts, SUM.min, SUM.max)
    assert np.array_equal(found, expected & (1 << SUM.width) - 1)


@dataclass(frozen=True)
class Unit:
    """A component, its deadlock bound in cycles, and the depth of the search (None: a proof for all time)."""

    make: Any
    within: int
    bound: int | None = None


# Beats of sums as wide as the link, half and twice.
UNITS = {
    "packer": Unit(lambda: PartialPacker(8, 4, 4), 4, bound=22),
    "packer, wide link": Unit(lambda: PartialPacker(8, 2, 8), 5, bound=22),
    "packer, narrow link": Unit(lambda: PartialPacker(8, 8, 4), 4, bound=22),
    "unpacker": Unit(lambda: PartialUnpacker(8, 4, 4), 1),
    "unpacker, wide link": Unit(lambda: PartialUnpacker(8, 2, 8), 2),
    "unpacker, narrow link": Unit(lambda: PartialUnpacker(8, 8, 4), 1),
}


@pytest.fixture(params=UNITS.values(), ids=UNITS.keys())
def unit(request):
    return request.param


def test_contract(unit):
    proof = prove_stream_contract(unit.make, cut=(*STORED_DATA_CELLS, *SHIFTERS))
    assert proof.status is Status.PROVED, proof.message


def test_no_ready_waits_for_a_valid(unit):
    proof = prove_ready_independent(unit.make)
    assert proof.status is Status.PROVED, proof.message


def test_no_deadlock(unit):
    # The packer's queue of headers says which ones are alone, so its memories are kept.
    how = {"bound": unit.bound, "cut": (*DATA_PATH_CELLS, *SHIFTERS)}
    proof = prove_no_deadlock(unit.make, within=unit.within, **how)
    assert proof.status is (Status.PROVED if unit.bound is None else Status.BOUNDED), proof.message
    proof = prove_no_deadlock(unit.make, within=unit.within - 1, **how)
    assert proof.status is Status.REFUTED
