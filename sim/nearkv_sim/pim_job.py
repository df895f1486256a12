"""Attention jobs of a PIM device as arrays: the beats of every input stream, and what must come out.

The instantiated units are the first of the device. All its units work on as many tokens each; what the other
groups' reduction units would send enters through the ports of the upper levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.final_division import output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.spec.attention import LOGIT, MAXIMUM, Merge
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_sim.cosim.words import pack_words
from nearkv_sim.golden.attention import Int64, Partial, logits, shard_maximum, weighted_sums
from nearkv_sim.golden.partial_beats import concatenate_fields, maximum_fields, partial_fields
from nearkv_sim.golden.pim_program import Fields, UnitProgram
from nearkv_sim.golden.reduction import divide, reduce_tree
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.golden.stored_rows import Int8Rows, Rows, quantise_int8, value_exponent

Words = NDArray[np.uint32]

# What a head's rows are: FP16 and INT8 of ordinary size; FP16 over five decades; FP16 so large that some
# logits saturate.
KINDS = ("fp16", "int8", "wide", "saturating")
_SATURATING = 200.0  # standard deviation of queries and keys: logits of thirty thousand and more


@dataclass(frozen=True)
class PimJob:
    """Heads back to back on a device.

    Attributes:
        design: the device.
        merge: how its partials are combined.
        kinds: of each head's rows.
        inputs: beats by input stream, as `CompiledComponent.run` takes them.
        outputs: expected beats of `o_output` and `o_maximum`.
        saturated: whether a logit of an instantiated unit saturates.
        full_rate_cycles: from the first command to the last output if nothing pauses.

    """

    design: PimDesign
    merge: Merge
    kinds: tuple[str, ...]
    inputs: dict[str, Words]
    outputs: dict[str, Words]
    saturated: bool
    full_rate_cycles: int


@dataclass(frozen=True)
class _Head:
    """One head's rows, unit after unit, and what the model makes of them.

    Attributes:
        query: float16 [head_dim].
        keys, values: rows [units · unit_tokens, head_dim].
        exponent: E_V of all values.
        maxima: int64 [units], of each unit's logits.
        partials: of each unit.
        result: of the device.

    """

    query: NDArray[np.float16]
    keys: Rows
    values: Rows
    exponent: int
    maxima: Int64
    partials: list[Partial]
    result: Partial


def random_job(
    design: PimDesign, *, heads: int, unit_tokens: int, merge: Merge, rng: np.random.Generator
) -> PimJob:
    """A job of random rows whose kinds take turns.

    The next head's keys are scored before the present one's values are added, in alternate slots. In an exact
    merge the commands carry the maximum that phase 1 will report: no barrier is waited for.

    Args:
        design: the device.
        heads: heads, from 1.
        unit_tokens: tokens of a head in every unit, 1 to block_tokens.
        merge: how partials are combined.
        rng: source of the rows.

    Raises:
        ValueError: heads or unit_tokens out of range.

    """
    if heads < 1:
        raise ValueError(f"heads is {heads}; allowed: from 1")
    if not 1 <= unit_tokens <= design.block_tokens:
        raise ValueError(
            f"unit_tokens is {unit_tokens}; design {design.name} allows: 1 to {design.block_tokens}, the"
            " scores that a unit can hold"
        )
    kinds = tuple(KINDS[head % len(KINDS)] for head in range(heads))
    played = [_head(design, kind, unit_tokens, merge, rng) for kind in kinds]
    programs = [_program(design, played, unit, unit_tokens, merge) for unit in range(design.rtl_units)]
    inputs = {}
    for unit, program in enumerate(programs):
        commands, rows, _ = program.take()
        inputs[f"i_command_{unit}"] = pack_words(command_layout(design), **commands)
        inputs[f"i_rows_{unit}"] = pack_words(row_layout(design), **rows)
    for level in range(design.rtl_levels, len(design.levels)):
        for child in range(1, design.fan_ins[level]):
            fields = _group(design, played, level, child, merge)
            inputs[f"i_level{level}_{child}"] = pack_words(partial_layout(design.partial_lanes), **fields)
    tokens = design.units * unit_tokens
    return PimJob(
        design=design,
        merge=merge,
        kinds=kinds,
        inputs=inputs,
        outputs=_outputs(design, played),
        saturated=any(program.model.saturated for program in programs),
        full_rate_cycles=attention_timing(design, tokens, heads, merge, barrier=False).cycles,
    )


def _head(design: PimDesign, kind: str, unit_tokens: int, merge: Merge, rng: np.random.Generator) -> _Head:
    shape = (design.units * unit_tokens, design.head_dim)
    query, keys, values = (rng.standard_normal(s) for s in (shape[1], shape, shape))
    if kind == "wide":
        keys *= 10.0 ** rng.uniform(-4, 1, (len(keys), 1))
        values *= 10.0 ** rng.uniform(-4, 1, (len(values), 1))
    elif kind == "saturating":
        query, keys = query * _SATURATING, keys * _SATURATING
    halves = keys.astype(np.float16), values.astype(np.float16)
    stored: tuple[Rows, Rows] = (
        (quantise_int8(halves[0]), quantise_int8(halves[1])) if kind == "int8" else halves
    )
    exponent = value_exponent(stored[1])
    half_query = query.astype(np.float16)
    scores, _ = logits(half_query[None], stored[0])
    shards = [scores[:, start : start + unit_tokens] for start in range(0, shape[0], unit_tokens)]
    maxima = np.concatenate([shard_maximum(shard) for shard in shards])
    partials = [
        weighted_sums(
            shard,
            _part(stored[1], unit, unit_tokens),
            maxima.max(keepdims=True) if merge is Merge.EXACT else maxima[unit : unit + 1],
            exponent,
            design.degree,
        )
        for unit, shard in enumerate(shards)
    ]
    result = reduce_tree(partials, design.fan_ins, merge, design.degree)
    return _Head(half_query, *stored, exponent, maxima, partials, result)


def _part(rows: Rows, unit: int, unit_tokens: int) -> Rows:
    """Rows of one unit."""
    mine = slice(unit * unit_tokens, (unit + 1) * unit_tokens)
    return Int8Rows(rows.codes[mine], rows.exponents[mine]) if isinstance(rows, Int8Rows) else rows[mine]


def _program(
    design: PimDesign, played: list[_Head], unit: int, unit_tokens: int, merge: Merge
) -> UnitProgram:
    program = UnitProgram(design)

    def score(index: int) -> None:
        program.write_query(played[index].query)
        program.score(index % 2, _part(played[index].keys, unit, unit_tokens), first=True)
        program.read_maximum(index % 2)

    score(0)
    for index, head in enumerate(played):
        if index + 1 < len(played):
            score(index + 1)
        values = _part(head.values, unit, unit_tokens)
        program.accumulate(
            index % 2,
            values,
            first=True,
            exponent=head.exponent,
            merge=merge,
            maximum=int(head.maxima.max()) if merge is Merge.EXACT else None,
        )
        program.read_result(merge)
    return program


def _group(design: PimDesign, played: list[_Head], level: int, child: int, merge: Merge) -> Fields:
    """What another group's topmost reduction unit sends, in the order in which the units' results come."""
    size = prod(design.fan_ins[:level])
    mine = slice(child * size, (child + 1) * size)
    lanes = design.partial_lanes
    maxima = [
        maximum_fields(head.maxima[mine].max(keepdims=True) << LOGIT.fraction_bits, 0, lanes)
        for head in played
    ]
    partials = [
        partial_fields(
            reduce_tree(head.partials[mine], design.fan_ins[:level], merge, design.degree),
            head.exponent,
            merge,
            lanes,
        )
        for head in played
    ]
    order = [maxima[0]]
    for index, partial in enumerate(partials):
        order += [*maxima[index + 1 : index + 2], partial]
    return concatenate_fields(order)


def _outputs(design: PimDesign, played: list[_Head]) -> dict[str, Words]:
    outputs = np.concatenate([divide(head.result, head.exponent) for head in played])
    data = outputs.view(np.uint16).reshape(-1, design.dividers)
    last = np.zeros((len(played), design.head_dim // design.dividers), np.uint8)
    last[:, -1] = 1
    maxima = np.array([head.maxima.max() for head in played], np.int64)
    return {
        "o_output": pack_words(output_layout(design.dividers), data=data, last=last.reshape(-1)),
        "o_maximum": (maxima[:, None] & (1 << MAXIMUM.width) - 1).astype(np.uint32),
    }
