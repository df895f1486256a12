"""The whole way in RTL with packed partials: units, packers, unpackers, reduction, division, on a real model.

A link of 16 bytes lies between every unit and the reduction; head dimension 64, as the model's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv.trace.format import read_trace
from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.final_division import output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.partial_packer import PartialPacker
from nearkv_hdl.pim.partial_unpacker import PartialUnpacker
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.pim.reduction_network import ReductionNetwork
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.packed_partial import PackedPartial
from nearkv_hdl.spec.pim_designs import ReductionLevel, get_pim_design
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.attention import logits, shard_maximum, weighted_sums
from nearkv_sim.golden.packed_partials import expand_partial, quantise_partial
from nearkv_sim.golden.partial_beats import concatenate_fields, partial_fields
from nearkv_sim.golden.pim_program import UnitProgram
from nearkv_sim.golden.reduction import divide, merge
from nearkv_sim.golden.stored_rows import value_exponent

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
LINK_BYTES = 16
UNITS, SHARDS = 2, 8
SHARD_TOKENS = 64
# Four lanes and one divider, as the small device.
DESIGN = replace(
    get_pim_design("tiny_pim"),
    head_dim=64,
    block_tokens=SHARD_TOKENS,
    levels=(ReductionLevel("link", UNITS),),
    rtl_levels=1,
)
LANES, DIVIDERS = DESIGN.partial_lanes, DESIGN.dividers
LINK = (DESIGN.head_dim, LANES, LINK_BYTES)


class LinkedUnits(wiring.Component):
    """Processing units, a link from each, one reduction unit and the division."""

    def __init__(self) -> None:
        members = {}
        for unit in range(UNITS):
            members[f"i_command_{unit}"] = In(stream.Signature(command_layout(DESIGN)))
            members[f"i_rows_{unit}"] = In(stream.Signature(row_layout(DESIGN)))
        self._network = ReductionNetwork((UNITS,), LANES, DIVIDERS, DESIGN.degree)
        outputs = {name: self._network.signature.members[name] for name in ("o_output", "o_maximum")}
        super().__init__(members | outputs | {"o_error": Out(1)})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.network = network = self._network
        errors = [network.o_mismatch, network.o_overflow]
        for index in range(UNITS):
            m.submodules[f"unit{index}"] = unit = ProcessingUnit(DESIGN)
            m.submodules[f"packer{index}"] = packer = PartialPacker(*LINK)
            m.submodules[f"unpacker{index}"] = unpacker = PartialUnpacker(*LINK)
            wiring.connect(m, wiring.flipped(getattr(self, f"i_command_{index}")), unit.i_command)
            wiring.connect(m, wiring.flipped(getattr(self, f"i_rows_{index}")), unit.i_rows)
            wiring.connect(m, unit.o, packer.i)
            wiring.connect(m, packer.o, unpacker.i)
            wiring.connect(m, unpacker.o, getattr(network, f"i_{index}"))
            errors += [unit.o_invalid, unit.o_overflow, unit.o_sequence_error, unit.o_framing_error]
            errors += [packer.o_framing_error, unpacker.o_framing_error, unpacker.o_invalid]
        for name in ("o_output", "o_maximum"):
            wiring.connect(m, getattr(network, name), wiring.flipped(getattr(self, name)))
        m.d.comb += self.o_error.eq(Cat(*errors).any())
        return m


@cache
def compiled(kind, *arguments) -> CompiledComponent:
    return CompiledComponent(kind(*arguments), name=kind.__name__, flatten=False)


def run(rtl: CompiledComponent, inputs, beats, stalls=None):
    """Everything through, from reset; no flag may come up."""
    rtl.reset()
    result = rtl.run(inputs, beats, stalls=stalls, drain_cycles=60)
    assert not any(flag.high_cycles for flag in result.flags.values()), result.flags
    return result


def over_a_link(partials: np.ndarray, heads: int) -> np.ndarray:
    """Words of partials through packer and unpacker; the link carries 80 bytes a head instead of 396."""
    beats = heads * PackedPartial(DESIGN.head_dim, LINK_BYTES).record_beats
    assert beats * LINK_BYTES == heads * 80
    packed = run(compiled(PartialPacker, *LINK), {"i": partials}, {"o": beats}).outputs["o"]
    return run(compiled(PartialUnpacker, *LINK), {"i": packed}, {"o": len(partials)}).outputs["o"]


def through_codes(partials):
    return [expand_partial(quantise_partial(partial)) for partial in partials]


def outputs_of(result) -> np.ndarray:
    """FP16 outputs [heads, head_dim], their ends checked."""
    fields = unpack_words(output_layout(DIVIDERS), result.outputs["o_output"])
    ends = fields["last"].reshape(-1, DESIGN.head_dim // DIVIDERS)
    assert ends[:, -1].all()
    assert not ends[:, :-1].any()
    return fields["data"].reshape(-1, DESIGN.head_dim).astype(np.uint16).view(np.float16)


@pytest.mark.parametrize("stalls", [None, Stalls(1, 0.3, 0.3)])
@pytest.mark.parametrize("kind", Merge)
def test_units_over_links_equal_the_golden_models(kind, stalls):
    """Last query of every head of one layer, the last tokens in two units; maxima cross the link too."""
    streams = read_trace(FIXTURE).streams[:3]
    programs = [UnitProgram(DESIGN) for _ in range(UNITS)]
    exact, rounded, maxima = [], [], []
    for one in streams:
        for query in one.query[:, -1]:
            shards = [one.key[-SHARD_TOKENS:], one.key[-2 * SHARD_TOKENS : -SHARD_TOKENS]]
            values = [one.value[-SHARD_TOKENS:], one.value[-2 * SHARD_TOKENS : -SHARD_TOKENS]]
            exponent = value_exponent(one.value)
            tops = []
            for program, keys in zip(programs, shards, strict=True):
                program.write_query(query)
                program.score(0, keys, first=True)
                tops.append(program.read_maximum(0))
            for program, rows in zip(programs, values, strict=True):
                maximum = max(tops) if kind is Merge.EXACT else None
                program.accumulate(0, rows, first=True, exponent=exponent, merge=kind, maximum=maximum)
                program.read_result(kind)
            partials = [program.model.result()[0] for program in programs]
            exact.append(divide(merge(partials, kind), exponent))
            rounded.append(divide(merge(through_codes(partials), kind), exponent))
            maxima.append(max(tops))
    inputs = {}
    for unit, program in enumerate(programs):
        commands, rows, _ = program.take()
        inputs[f"i_command_{unit}"] = pack_words(command_layout(DESIGN), **commands)
        inputs[f"i_rows_{unit}"] = pack_words(row_layout(DESIGN), **rows)
    beats = {"o_output": len(exact) * DESIGN.head_dim // DIVIDERS, "o_maximum": len(exact)}
    result = run(compiled(LinkedUnits), inputs, beats, stalls)
    found = outputs_of(result)
    assert np.array_equal(found.view(np.uint16), np.concatenate(rounded).view(np.uint16))
    assert not np.array_equal(found, np.concatenate(exact))  # the codes are lossy
    assert result.outputs["o_maximum"][:, 0].astype(np.uint16).view(np.int16).tolist() == maxima


@pytest.mark.parametrize("kind", Merge)
def test_output_error_of_a_real_model_in_eight_shards(kind):
    """Last query of every head over all tokens; docs/reduction.md has the error."""
    fields = [[] for _ in range(SHARDS)]
    exact, rounded = [], []
    trace = read_trace(FIXTURE)
    for one in trace.streams:
        exponent = value_exponent(one.value)
        shards = np.array_split(np.arange(trace.context_tokens), SHARDS)
        scores = [logits(one.query[:, -1], one.key[shard])[0] for shard in shards]
        maxima = [shard_maximum(part) for part in scores]
        if kind is Merge.EXACT:
            maxima = [np.maximum.reduce(maxima)] * SHARDS
        partials = [
            weighted_sums(part, one.value[shard], maximum, exponent, DESIGN.degree)
            for part, shard, maximum in zip(scores, shards, maxima, strict=True)
        ]
        for child, partial in enumerate(partials):
            fields[child].append(partial_fields(partial, exponent, kind, LANES))
        exact.append(divide(merge(partials, kind), exponent))
        rounded.append(divide(merge(through_codes(partials), kind), exponent))
    wanted, lossless = np.concatenate(rounded), np.concatenate(exact)
    inputs = {}
    for child, parts in enumerate(fields):
        words = pack_words(partial_layout(LANES), **concatenate_fields(parts))
        inputs[f"i_{child}"] = over_a_link(words, len(wanted))
    network = compiled(ReductionNetwork, (SHARDS,), LANES, DIVIDERS, DESIGN.degree)
    found = outputs_of(run(network, inputs, {"o_output": wanted.size // DIVIDERS}))
    assert np.array_equal(found.view(np.uint16), wanted.view(np.uint16))
    difference = found.astype(np.float64) - lossless
    error = np.linalg.norm(difference) / np.linalg.norm(lossless.astype(np.float64))
    assert error == pytest.approx(0.0089, rel=0.01)
