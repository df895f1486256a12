"""What docs/reduction.md says of packed partials: its example in RTL, and every table of bits and bytes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from nearkv_hdl.pim.packed import HEADER, packed_layout
from nearkv_hdl.pim.partial import MAXIMUM_LANE, MAXIMUM_WORD, TOTAL_LANE, partial_layout
from nearkv_hdl.pim.partial_packer import PartialPacker
from nearkv_hdl.pim.partial_unpacker import PartialUnpacker
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.packed_partial import HEADER_BYTES, MAX_SHIFT
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.attention import Partial
from nearkv_sim.golden.packed_partials import expand_partial, quantise_partial
from nearkv_sim.golden.partial_beats import partial_fields
from nearkv_sim.golden.reduction import merge

PAGE = (Path(__file__).parents[2] / "docs" / "reduction.md").read_text(encoding="utf-8")
SIZES = HEAD_DIM, LANES, LINK_BYTES = 16, 4, 4  # compiles in seconds
CHILDREN, HEADS = 2, 20
LARGEST = 1 << 45  # of a sum, so that both children's fit 48 bits


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Names the page's example defines, and the Verilog it writes."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folder = tmp_path_factory.mktemp("example")
    script = folder / "example.py"
    script.write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = runpy.run_path(str(script))
    return names, (folder / "linked_reduction.v").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def linked(example):
    return CompiledComponent(example[0]["LinkedReduction"](*SIZES), name="linked_reduction")


@pytest.mark.parametrize("kind", Merge)
def test_the_example_merges_what_crossed_the_links(linked, kind):
    rng = np.random.default_rng(3)
    shared = rng.integers(-1000, 1000, HEADS) << 16
    partials = [
        Partial(
            shared if kind is Merge.EXACT else rng.integers(-3 << 16, 3 << 16, HEADS),
            rng.integers(1, LARGEST, HEADS),
            rng.integers(-LARGEST, LARGEST, (HEADS, HEAD_DIM)) >> rng.integers(0, 40, (HEADS, 1)),
        )
        for _ in range(CHILDREN)
    ]
    inputs = {
        f"i_{child}": pack_words(partial_layout(LANES), **partial_fields(partial, 5, kind, LANES))
        for child, partial in enumerate(partials)
    }
    received = [expand_partial(quantise_partial(partial)) for partial in partials]
    wanted = partial_fields(merge(received, kind), 5, kind, LANES)
    linked.reset()
    result = linked.run(inputs, {"o": len(wanted["last"])}, stalls=Stalls(1), drain_cycles=60)
    beats = unpack_words(partial_layout(LANES), result.outputs["o"])
    for field, values in wanted.items():
        assert np.array_equal(beats[field], values), field
    assert not result.flags["o_error"].high_cycles


def place(formula: str, sizes: dict[str, int]) -> int:
    """The bit that a formula like `48·p − 1` names, or a number."""
    if formula.isdecimal():
        return int(formula)
    factor, size, sign, rest = re.fullmatch(r"(\d+)·(\w)(?: ([+−]) (\d+))?", formula).groups()
    return int(factor) * sizes[size] + int(rest or 0) * (-1 if sign == "−" else 1)


def test_bits_of_both_streams(example):
    """In the example's Verilog, and from the formulas of the table."""
    lanes, link_bytes = 16, 16
    totals = [int(bits) for bits in re.search(r"\(16 and 16: (\d+) and (\d+) bits\)", PAGE).groups()]
    assert totals == [partial_layout(lanes).size, packed_layout(link_bytes).size]
    assert f"input [{totals[0] - 1}:0] i_0_payload;" in example[1]
    rows = re.findall(r"^\| (partial|link) \| (\w+) \| ([\d·pb+−: ]+) \|", PAGE, re.MULTILINE)
    layouts = {"partial": partial_layout(lanes), "link": packed_layout(link_bytes)}
    for stream, layout in layouts.items():
        written = {}
        for _, field, bits in (row for row in rows if row[0] == stream):
            ends = [place(end, {"p": lanes, "b": link_bytes}) for end in bits.split(":")]
            written[field] = ends[-1], ends[0]
        assert written == {name: (f.offset, f.offset + f.width - 1) for name, f in layout}
    assert "lane 0 is l, lane 1 has m in its bits 31:0 and E_V in 37:32" in PAGE
    word = dict(iter(MAXIMUM_WORD))
    assert (TOTAL_LANE, MAXIMUM_LANE, word["maximum"].width) == (0, 1, 32)
    assert (word["value_exponent"].offset, word["value_exponent"].width) == (32, 6)


def test_bytes_of_a_record():
    rows = re.findall(r"^\| (\d+) \| (\d+|one per group) \| (.*) \|$", PAGE, re.MULTILINE)
    fields = dict(iter(HEADER))
    places = [fields[name].offset / 8 for name in ("total", "maximum", "value_exponent")]
    assert [int(byte) for byte, *_ in rows] == [*places, fields["merge"].offset / 8, HEADER_BYTES]
    assert [size for _, size, _ in rows[:4]] == ["6", "4", "1", "1"]
    assert fields["alone"].offset == fields["merge"].offset + 1
    assert f"0 to {MAX_SHIFT}," in rows[-1][2]
    assert f"bit 0: merge, {Merge.EXACT.value} exact, {Merge.EXPONENTIAL.value} exponential" in rows[3][2]


def test_flags_are_those_of_the_units():
    written = set(re.findall(r"^\| `(Partial\w+\.o_\w+)` \|", PAGE, re.MULTILINE))
    units = PartialPacker(*SIZES), PartialUnpacker(*SIZES)
    flags = {f"{type(u).__name__}.{name}" for u in units for name in u.signature.members if name[:2] == "o_"}
    assert written == flags
