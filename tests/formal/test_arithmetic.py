"""Adder trees are sums and multipliers products: by SAT, and exhaustively against numpy's integers."""

import numpy as np
import pytest
from amaranth.hdl import Cat, Elaboratable, Module, Signal, signed

from nearkv_hdl.arith.adder_tree import AdderTree
from nearkv_hdl.arith.mult18x18d import Mult18x18d
from nearkv_hdl.attention.dot_product import DotProduct
from nearkv_hdl.attention.packed_dot_product import PackedDotProduct
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P, LFE5U_85F
from nearkv_hdl.spec.formats import CODE, Format, folded_query
from nearkv_hdl.spec.multiplier import MacVariant, packing
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.formal import Status
from nearkv_sim.formal.netlist import netlist_of, prove_equal

CHUNK_PATTERNS = 1 << 20  # evaluated at a time: a net's values then fit a cache
HEADS, KEYS = MacVariant.PACKED_HEADS, MacVariant.PACKED_KEYS


def trees_of(part, seen):
    """Shapes of the adder trees inside a component, however deep."""
    if isinstance(part, AdderTree):
        seen.add((part.term, part.terms))
    elif isinstance(part, list):
        for element in part:
            trees_of(element, seen)
    elif isinstance(part, Elaboratable):
        for element in vars(part).values():
            trees_of(element, seen)
    return seen


def design_trees():
    seen = set()
    for design in DESIGNS.values():
        trees_of(Scorer(design), seen)
    for design in PIM_DESIGNS.values():
        trees_of(ProcessingUnit(design), seen)
    return sorted(seen, key=lambda shape: (shape[1], shape[0].width))


def in_pairs(terms):
    """Their sum, added in the tree's order, in Amaranth's own growing numbers."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return terms[0]


def one_by_one(terms):
    return sum(terms[1:], start=terms[0])


def tree_is(total, term, terms):
    tree = AdderTree(term, terms)
    inputs = {f"i{index}": port for index, port in enumerate(tree.i)}
    return prove_equal(tree, inputs, [(tree.o, total(list(tree.i)))]).status


@pytest.mark.parametrize(
    ("term", "terms"), design_trees(), ids=lambda value: str(getattr(value, "width", value))
)
def test_trees_of_every_design_add(term, terms):
    assert tree_is(in_pairs, term, terms) is Status.PROVED


def test_order_of_addition_does_not_matter():
    assert tree_is(one_by_one, Format(16, signed=True), 4) is Status.PROVED


def test_a_tree_one_bit_too_narrow_is_refuted():
    tree = AdderTree(Format(7, signed=True), 4)
    wide = [Signal(signed(8), name=f"wide{index}") for index in range(4)]

    class Narrow(Elaboratable):
        def elaborate(self, _platform):
            m = Module()
            m.submodules.tree = tree
            m.d.comb += [port.eq(value) for port, value in zip(tree.i, wide, strict=True)]
            return m

    inputs = {f"i{index}": value for index, value in enumerate(wide)}
    assert prove_equal(Narrow(), inputs, [(tree.o, in_pairs(wide))]).status is Status.REFUTED


def lane_design(variant, query_bits=8, lanes=4):
    return DesignConfig(
        name="lane",
        device=LFE5U_85F if variant is MacVariant.MULT18X18D else KU15P,
        bus_bytes=lanes,
        lanes=lanes,
        query_group=2,
        head_dims=(64,),
        clock_hz=1,
        query_bits=query_bits,
        block_tokens=16,
        variant=variant,
    )


class OneBeat(Elaboratable):
    """A dot product unit whose every beat is a token of its own: the accumulator starts afresh."""

    def __init__(self, unit):
        self.unit = unit

    def elaborate(self, _platform):
        m = Module()
        m.submodules.unit = self.unit
        m.d.comb += [self.unit.valid.eq(1), self.unit.first.eq(1)]
        return m


def gates_of(unit):
    """Gates from the unit's operands to its sums, and the names of the operands lane by lane."""
    packed = isinstance(unit, PackedDotProduct)
    rows = [unit.narrow, *unit.wide] if packed else [unit.codes, unit.query]
    operands = [[f"row{r}_{lane}" for lane in range(len(row))] for r, row in enumerate(rows)]
    inputs = {
        name: port
        for row, names in zip(rows, operands, strict=True)
        for port, name in zip(row, names, strict=True)
    }
    sums = {f"sum{k}": o for k, o in enumerate(unit.o)} if packed else {"sum0": unit.o}
    return netlist_of(OneBeat(unit), inputs, sums), list(zip(*operands, strict=True))


def check_products(netlist, lanes, patterns):
    """Compare sums of products with numpy's. patterns: per lane [operands][patterns]."""
    names = [name for lane in lanes for name in lane]
    values = dict(zip(names, (row for lane in patterns for row in lane), strict=True))
    sums = netlist.evaluate(values)
    for k, (name, found) in enumerate(sums.items()):
        bits = len(netlist.outputs[name])
        wanted = sum(lane[0] * lane[1 + k] for lane in patterns)
        np.testing.assert_array_equal(found, wanted & ((1 << bits) - 1), err_msg=name)


def grid(*axes):
    """Every combination of the axes' values, in chunks: one array per axis."""
    sizes = [len(axis) for axis in axes]
    count = int(np.prod(sizes))
    for start in range(0, count, CHUNK_PATTERNS):
        places = np.unravel_index(np.arange(start, min(start + CHUNK_PATTERNS, count)), sizes)
        yield [axis[place] for axis, place in zip(axes, places, strict=True)]


def lowest(number):
    """A key code takes its whole range, a query code is symmetric (see `folded_query`)."""
    return number.min if number is CODE else -number.max


def numbers(number):
    return np.arange(lowest(number), number.max + 1, dtype=np.int64)


def extremes(number):
    return np.array([lowest(number), -1, 0, 1, number.max], dtype=np.int64)


@pytest.mark.parametrize("query_bits", [8, 10, 12])
@pytest.mark.parametrize("variant", [MacVariant.PLAIN, MacVariant.MULT18X18D], ids=lambda v: v.value)
def test_every_product_of_one_lane(variant, query_bits):
    design = lane_design(variant, query_bits)
    netlist, lanes = gates_of(DotProduct(design))
    for lane in (lanes[0], lanes[-1]):
        alone = netlist.restricted(lane)
        for patterns in grid(numbers(CODE), numbers(design.query_code)):
            check_products(alone, [lane], [patterns])


def packed_formats(design):
    """(narrow, wide) operands of the packed unit."""
    query = design.query_code
    return (CODE, query) if design.mac_variant is HEADS else (query, CODE)


@pytest.mark.parametrize("variant", [HEADS, KEYS], ids=lambda v: v.value)
def test_every_pair_of_packed_products_of_one_lane(variant):
    design = lane_design(variant)
    narrow, wide = packed_formats(design)
    netlist, lanes = gates_of(PackedDotProduct(design))
    alone = netlist.restricted(lanes[0])
    for patterns in grid(numbers(narrow), numbers(wide), numbers(wide)):
        check_products(alone, lanes[:1], [patterns])


@pytest.mark.parametrize("variant", [HEADS, KEYS], ids=lambda v: v.value)
def test_ten_bit_packed_products_beside_extreme_neighbours(variant):
    design = lane_design(variant, query_bits=10)
    narrow, wide = packed_formats(design)
    netlist, lanes = gates_of(PackedDotProduct(design))
    alone = netlist.restricted(lanes[-1])
    for axes in ((numbers(wide), extremes(wide)), (extremes(wide), numbers(wide))):
        for patterns in grid(numbers(narrow), *axes):
            check_products(alone, lanes[-1:], [patterns])


@pytest.mark.parametrize("query_bits", [8, 10])
@pytest.mark.parametrize("variant", [HEADS, KEYS], ids=lambda v: v.value)
def test_full_packed_fields_do_not_disturb_each_other(variant, query_bits):
    """All lanes at once: alike over every combination of extremes, and drawn from the extremes."""
    terms = packing(variant, folded_query(query_bits)).terms
    design = lane_design(variant, query_bits, lanes=max(4, terms * (2 if variant is KEYS else 1)))
    narrow, wide = packed_formats(design)
    netlist, lanes = gates_of(PackedDotProduct(design))
    assert len(lanes) >= terms
    (alike,) = grid(extremes(narrow), extremes(wide), extremes(wide))
    check_products(netlist, lanes, [alike] * len(lanes))
    rng = np.random.default_rng(7)
    for choose in (extremes, numbers):
        drawn = [[rng.choice(choose(f), 1 << 14) for f in (narrow, wide, wide)] for _ in lanes]
        check_products(netlist, lanes, drawn)


def test_a_query_code_that_is_not_symmetric_overflows_a_full_field():
    netlist, lanes = gates_of(PackedDotProduct(lane_design(KEYS, lanes=16)))
    lowest_codes = [np.array([CODE.min], dtype=np.int64)] * 3
    with pytest.raises(AssertionError, match="sum0"):
        check_products(netlist, lanes, [lowest_codes] * len(lanes))


def test_packing_without_the_borrow_is_refuted():
    class Unborrowed(PackedDotProduct):
        """Forgets that a negative lower number borrows from the upper."""

        def _pack(self, lower, upper):
            return Cat(lower, lower[-1].replicate(self._field - len(lower)), upper).as_signed()

    design = lane_design(HEADS)
    netlist, lanes = gates_of(Unborrowed(design))
    (patterns,) = grid(*(extremes(f) for f in (CODE, design.query_code, design.query_code)))
    with pytest.raises(AssertionError, match="sum1"):
        check_products(netlist.restricted(lanes[0]), lanes[:1], [patterns])


@pytest.mark.parametrize(("a_bits", "b_bits"), [(4, 4), (8, 8), (18, 18)])
def test_multiplier_block_twin_multiplies(a_bits, b_bits):
    block = Mult18x18d(a_bits, b_bits)
    proof = prove_equal(block, {"a": block.a, "b": block.b}, [(block.o, block.a * block.b)])
    assert proof.status is Status.PROVED
