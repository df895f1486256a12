"""A whole small device: placement invariance on RTL, upper levels through ports, no gap between heads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.pim.final_division import output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.attention import attend_exact, logits, shard_maximum, weighted_sums
from nearkv_sim.golden.partial_beats import maximum_fields, partial_fields
from nearkv_sim.golden.pim_program import UnitProgram
from nearkv_sim.golden.reduction import divide
from nearkv_sim.golden.stored_rows import value_exponent

PLACEMENTS = 60
# Two units under one reduction unit; the level above takes a second group's partial through a port.
DESIGN = replace(get_pim_design("tiny_pim"), rtl_levels=1)
UNITS, OTHER = DESIGN.rtl_units, "i_level1_1"
TOKENS = 20


@cache
def device() -> CompiledComponent:
    return CompiledComponent(PimDevice(DESIGN), name="pim_device")


class Shard:
    """Tokens of one unit, cut into blocks, in the order they are streamed."""

    def __init__(self, tokens, cuts) -> None:
        self.tokens = tokens
        self.blocks = np.split(tokens, cuts)


def inputs_of(programs) -> dict:
    inputs = {}
    for unit, program in enumerate(programs):
        commands, rows, _ = program.take()
        inputs[f"i_command_{unit}"] = pack_words(command_layout(DESIGN), **commands)
        inputs[f"i_rows_{unit}"] = pack_words(row_layout(DESIGN), **rows)
    return inputs


def attend_on_rtl(query, keys, values, shards, other, stalls):
    """Both phases on the device; the tokens of `other` lie in a group that the golden model plays."""
    exponent = value_exponent(values)
    programs = [UnitProgram(DESIGN) for _ in shards]
    for program, shard in zip(programs, shards, strict=True):
        program.write_query(query)
        program.score(0, keys[:0], first=True)
        for block in shard.blocks:
            program.score(0, keys[block], first=False)
        program.read_maximum(0)
    scores, _ = logits(query[None], keys[other])
    words = pack_words(
        partial_layout(DESIGN.partial_lanes),
        **maximum_fields(shard_maximum(scores) << 16, 0, DESIGN.partial_lanes),
    )
    first = device().run(inputs_of(programs) | {OTHER: words}, {"o_maximum": 1}, stalls=stalls)
    maximum = int(first.outputs["o_maximum"].astype(np.uint16).view(np.int16)[0, 0])

    for program, shard in zip(programs, shards, strict=True):
        kind = {"exponent": exponent, "merge": Merge.EXACT, "maximum": maximum}
        program.accumulate(0, values[:0], first=True, **kind)
        for block in shard.blocks:
            program.accumulate(0, values[block], first=False, **kind)
        program.read_result(Merge.EXACT)
    partial = weighted_sums(scores, values[other], np.array([maximum]), exponent)
    fields = partial_fields(partial, exponent, Merge.EXACT, DESIGN.partial_lanes)
    words = pack_words(partial_layout(DESIGN.partial_lanes), **fields)
    beats = DESIGN.head_dim // DESIGN.dividers
    second = device().run(
        inputs_of(programs) | {OTHER: words}, {"o_output": beats}, stalls=stalls, drain_cycles=40
    )
    assert not second.flags["o_error"].high_cycles
    output = unpack_words(output_layout(DESIGN.dividers), second.outputs["o_output"])
    return maximum, output["data"].reshape(-1)


def test_any_placement_gives_the_same_bits():
    """60 random placements, orders, blocks and pauses; also equal to the golden model of no placement."""
    rng = np.random.default_rng(11)
    device().reset()
    for _ in range(PLACEMENTS // 15):
        query = (rng.standard_normal(16) * 3).astype(np.float16)
        keys, values = (
            (rng.standard_normal((TOKENS, 16)) * 10.0 ** rng.uniform(-3, 1, (TOKENS, 1))).astype(np.float16)
            for _ in range(2)
        )
        whole = attend_exact(query[None], keys, values)
        expected = divide(whole, value_exponent(values)).view(np.uint16)[0]
        for placement in range(15):
            home = rng.choice(UNITS + 1, TOKENS, p=rng.dirichlet([0.7] * (UNITS + 1)))
            # A unit of the small design holds eight scores; what it has no room for moves on.
            for unit in range(UNITS):
                home[np.flatnonzero(home == unit)[DESIGN.block_tokens :]] = UNITS
            shards = []
            for unit in range(UNITS):
                tokens = rng.permutation(np.flatnonzero(home == unit))
                shards.append(Shard(tokens, np.sort(rng.integers(0, len(tokens) + 1, 2))))
            other = rng.permutation(np.flatnonzero(home == UNITS))
            stalls = Stalls(placement, 0.4, 0.4) if placement % 3 else None
            maximum, output = attend_on_rtl(query, keys, values, shards, other, stalls)
            assert maximum == whole.maximum[0] >> 16
            assert np.array_equal(output, expected)


def rows_of(kind: str, rng: np.random.Generator):
    """Query, keys and values at the ends of what FP16 and the logits can hold."""
    query, keys, values = (rng.standard_normal(shape) for shape in (16, (TOKENS, 16), (TOKENS, 16)))
    subnormal = 2.0**-24 * rng.integers(-1023, 1024, (TOKENS, 16))
    largest = 65504.0 * rng.choice([-1, 1], (TOKENS, 16))
    zeros = 0.0 * keys  # of both signs
    if kind == "all subnormal":
        query, keys, values = subnormal[0], subnormal, subnormal[::-1]
    elif kind == "zeros":
        query, values = zeros[0], zeros
    elif kind == "largest":
        query, keys, values = largest[0], subnormal, largest
    elif kind == "all scores equal":
        keys[:] = keys[0]
    elif kind in ("saturated above", "saturated below", "saturated either way"):
        signs = {"saturated above": 1, "saturated below": -1}.get(kind, rng.choice([-1, 1], (TOKENS, 1)))
        query[:], keys[:] = 200, 200 * signs
    else:
        assert kind == "values of every size"
        values[0], values[1], values[2] = largest[0], subnormal[0], zeros[0]
    return tuple(numbers.astype(np.float16) for numbers in (query, keys, values))


ENDS = ("all subnormal", "zeros", "largest", "all scores equal", "values of every size")
ENDS += ("saturated above", "saturated below", "saturated either way")


@pytest.mark.parametrize("kind", ENDS)
def test_odd_partitions_of_extreme_rows_give_the_same_bits(kind):
    """No token, one token or all that fit in a unit; the rest in the other group, or nothing there."""
    rng, block = np.random.default_rng(len(kind)), DESIGN.block_tokens
    query, keys, values = rows_of(kind, rng)
    device().reset()
    for tokens, sizes in ((20, (0, 1)), (20, (block, 0)), (16, (block, block)), (20, (0, 0)), (1, (1, 0))):
        whole = attend_exact(query[None], keys[:tokens], values[:tokens])
        order = rng.permutation(tokens)
        *mine, other = np.split(order, np.cumsum(sizes))
        shards = [Shard(part, [len(part) // 2]) for part in mine]
        rows = query, keys[:tokens], values[:tokens]
        maximum, output = attend_on_rtl(*rows, shards, other, Stalls(tokens, 0.4, 0.4))
        assert maximum == whole.maximum[0] >> 16
        np.testing.assert_array_equal(output, divide(whole, value_exponent(rows[2])).view(np.uint16)[0])


@pytest.mark.parametrize(("name", "units"), [("hbm_pim", 4), ("ddr_pim", 8), ("ssd_pim", 8)])
def test_designs_instantiate_their_group(name, units):
    """A bank group, a chip, a channel; every level above is there with ports for the other groups."""
    design = get_pim_design(name)
    members = PimDevice(design).signature.members
    assert design.rtl_units == units
    assert f"i_rows_{units - 1}" in members
    assert f"i_rows_{units}" not in members
    others = [member for member in members if member.startswith("i_level")]
    assert len(others) == sum(fan_in - 1 for fan_in in design.fan_ins[design.rtl_levels :])
