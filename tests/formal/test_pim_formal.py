"""Processing unit, reduction and division keep the stream contract, and every job of theirs ends: proofs.

The sources are free: what they send need not be well formed, so no garbage on a stream can stop a device.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from amaranth.hdl import Assume, Signal

from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.pim.final_division import FinalDivision
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.pim.reduction_network import ReductionNetwork, ReductionTree
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.pim.result_reader import ResultReader
from nearkv_hdl.spec.pim_designs import ReductionLevel, get_pim_design
from nearkv_hdl.stream.contract import ProgressWatch, TokenCount
from nearkv_sim.formal import (
    Bench,
    Status,
    prove,
    prove_no_deadlock,
    prove_ready_independent,
    prove_stream_contract,
)
from nearkv_sim.formal.properties import STORED_DATA_CELLS

# Four lanes, four beats a row, blocks of two tokens, two units under one reduction unit.
DESIGN = replace(
    get_pim_design("tiny_pim"), block_tokens=2, levels=(ReductionLevel("device", 2),), rtl_levels=1
)
WIDE_PARTIALS = replace(DESIGN, partial_lanes=8)


@dataclass(frozen=True)
class Unit:
    """A component, the cycles within which it moves, and the depth of the search for one that does not.

    `bound` None: a proof for all time. `tight`: one cycle less is refuted.
    """

    make: Any
    within: int
    bound: int | None = None
    tight: bool = True


def waits_for_factors(fan_in: int) -> int:
    """The longest wait in a reduction unit: an exponential merge's factors, and then all children's turns."""
    return ReductionUnit(fan_in, 2).factor_cycles + fan_in


UNITS = {
    "reduction of 2": Unit(lambda: ReductionUnit(2, 2), waits_for_factors(2)),
    "reduction of 3": Unit(lambda: ReductionUnit(3, 2), waits_for_factors(3)),
    "tree of 2 by 2": Unit(lambda: ReductionTree((2, 2), 2), 2 * waits_for_factors(2), tight=False),
    "division, one divider": Unit(lambda: FinalDivision(2, 1), 1),
    "division, two of four": Unit(lambda: FinalDivision(4, 2), 1),
    "network": Unit(lambda: ReductionNetwork((2,), 2, 1), waits_for_factors(2)),
    "processing unit": Unit(lambda: ProcessingUnit(DESIGN), 20, bound=44),
}


@pytest.fixture(params=UNITS.values(), ids=UNITS.keys())
def unit(request):
    return request.param


@pytest.mark.parametrize("make", [u.make for u in UNITS.values()], ids=UNITS)
def test_contract(make):
    proof = prove_stream_contract(make, cut=STORED_DATA_CELLS)
    assert proof.status is Status.PROVED, proof.message


@pytest.mark.parametrize("make", [u.make for u in UNITS.values()], ids=UNITS)
def test_no_ready_waits_for_a_valid(make):
    proof = prove_ready_independent(make)
    assert proof.status is Status.PROVED, proof.message


def test_no_deadlock(unit):
    proof = prove_no_deadlock(unit.make, within=unit.within, bound=unit.bound)
    assert proof.status is (Status.PROVED if unit.bound is None else Status.BOUNDED), proof.message
    if unit.tight:
        proof = prove_no_deadlock(unit.make, within=unit.within - 1, bound=unit.bound)
        assert proof.status is Status.REFUTED
        assert "a transfer on some stream" in proof.message


def test_device_contract():
    proof = prove_stream_contract(lambda: PimDevice(DESIGN), cut=STORED_DATA_CELLS)
    assert proof.status is Status.PROVED, proof.message
    proof = prove_ready_independent(lambda: PimDevice(DESIGN))
    assert proof.status is Status.PROVED, proof.message


def wait(bench, name, limit, *, pending, counts=1, happens):
    bench.add(name, ProgressWatch(limit, name), pending=pending, counts=counts, happens=happens)


def merged_beats_bench(unit, limit):
    """A merged beat is due for every beat of the last child, and comes whatever the children then do."""
    bench = Bench(unit)
    last, sink = bench.input(f"i_{unit.fan_in - 1}"), bench.output(None)
    due = bench.add("due", TokenCount(unit.latency + 3), enters=last.transfers, leaves=sink.transfers).count
    wait(bench, "merged_beat", limit, pending=due != 0, happens=sink.port.valid)
    return bench


@pytest.mark.parametrize("fan_in", [2, 3])
def test_reduction_gives_a_merged_beat_for_every_beat_of_each_child(fan_in):
    limit = waits_for_factors(fan_in) + ReductionUnit(fan_in, 2).latency
    bench = merged_beats_bench(ReductionUnit(fan_in, 2), limit)
    proof = prove(bench.module, bench.free, cut=STORED_DATA_CELLS)
    assert proof.status is Status.PROVED, proof.message
    bench = merged_beats_bench(ReductionUnit(fan_in, 2), waits_for_factors(fan_in))
    assert prove(bench.module, bench.free, cut=STORED_DATA_CELLS).status is Status.REFUTED


def reader_bench(design, limit):
    """A request is served in so many cycles in which its sums are settled and the sink is ready."""
    unit = ResultReader(design)
    bench = Bench(unit)
    bench.module.d.sync += Assume(~(unit.request_valid & unit.busy))
    wait(bench, "served", limit, pending=unit.busy, counts=unit.settled & unit.o.ready, happens=~unit.busy)
    frames = bench.output(None).transfers & unit.o.payload.last
    bench.add("frames", TokenCount(3), enters=unit.request_valid & ~unit.busy, leaves=frames)
    return bench


@pytest.mark.parametrize("design", [DESIGN, WIDE_PARTIALS], ids=["a row a beat", "two rows a beat"])
def test_reader_serves_every_request(design):
    proof = prove_stream_contract(lambda: ResultReader(design))
    assert proof.status is Status.PROVED, proof.message
    for slack, status in ((0, Status.PROVED), (-1, Status.REFUTED)):
        bench = reader_bench(design, design.beats + 3 + slack)
        assert prove(bench.module, bench.free).status is status


def division_bench(unit, limit):
    """Every sum that is taken comes out as a quotient, every lone maximum as a maximum."""
    bench = Bench(unit)
    m, source = bench.module, bench.input(None)
    outputs, maxima = bench.output("o_output"), bench.output("o_maximum")
    in_sums = Signal()
    with m.If(source.transfers):
        m.d.sync += in_sums.eq(~source.port.payload.last)
    is_sum = source.transfers & in_sums
    is_maximum = source.transfers & ~in_sums & source.port.payload.last
    quotients = bench.add("quotients", TokenCount(unit.latency + 1), enters=is_sum, leaves=outputs.transfers)
    alone = bench.add("maxima", TokenCount(1), enters=is_maximum, leaves=maxima.transfers)
    wait(bench, "quotient", limit, pending=quotients.count != 0, happens=outputs.port.valid)
    wait(bench, "maximum", 0, pending=alone.count != 0, happens=maxima.port.valid)
    return bench


def test_division_gives_back_every_sum_and_every_maximum():
    for slack, status in ((0, Status.BOUNDED), (-1, Status.REFUTED)):
        unit = FinalDivision(2, 2)
        bench = division_bench(
            unit, unit.latency - 1 + slack
        )  # the cycle in which a sum is taken is not counted
        proof = prove(bench.module, bench.free, bound=unit.latency + 5, cut=STORED_DATA_CELLS)
        assert proof.status is status, proof.message
