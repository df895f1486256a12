"""Contracts of the engine's parts, and that the gate and the batcher do not hang, under any pauses."""

from __future__ import annotations

import pytest
from amaranth.hdl import Assert, Assume

from nearkv_hdl.migrate.block_translator import BlockTranslator
from nearkv_hdl.migrate.idle_gate import IdleGate
from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.migration_path import MigrationPath
from nearkv_hdl.migrate.move_batcher import MoveBatcher
from nearkv_hdl.migrate.move_planner import MovePlanner
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.migrate.tile_commands import TileCommands
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.formal import (
    Bench,
    Status,
    prove,
    prove_progress,
    prove_ready_independent,
    prove_stream_contract,
)

SHAPES = MoveShapes(PIM_LAYOUTS["tiny_pim"], slot_bits=1, block_bits=2, address_bits=32, tiles_bits=3)
PATIENCE = 3
PARTS = {
    "translator": lambda: BlockTranslator(SHAPES, 2),
    "planner": lambda: MovePlanner(SHAPES),
    "batcher": lambda: MoveBatcher(SHAPES),
    "commands": lambda: TileCommands(SHAPES),
}


# The whole: what memories and arithmetic give is free.
WHOLE = {
    "path": lambda: MigrationPath(SHAPES, 8, 8, burst_beats=2, memory_latency_cycles=4),
    "engine": lambda: MigrationEngine(SHAPES, 8, (8,), queue=2, burst_beats=2, memory_latency_cycles=4),
}
CUT = ("$mem_v2", "$mul", "$sub", "$shr", "$shl")


def gate():
    return IdleGate(1, PATIENCE)


def still_base(m, component, _bench):
    """The table stays where it is while a read of it is offered."""
    m.d.comb += Assume(component.table_base == 0)


@pytest.mark.parametrize("name", PARTS)
def test_parts_keep_the_stream_contract(name):
    constrain = still_base if name == "translator" else None
    proof = prove_stream_contract(PARTS[name], constrain=constrain, cut=())
    assert proof.status is Status.PROVED, proof.message


@pytest.mark.parametrize("name", WHOLE)
def test_the_whole_keeps_the_stream_contract(name):
    proof = prove_stream_contract(WHOLE[name], cut=CUT)
    assert proof.status is Status.PROVED, proof.message
    assert prove_ready_independent(WHOLE[name]).status is Status.PROVED


@pytest.mark.parametrize("name", PARTS)
def test_parts_wait_for_no_token(name):
    assert prove_ready_independent(PARTS[name]).status is Status.PROVED


def test_the_gate_keeps_the_contract_whatever_compute_does():
    assert prove_stream_contract(gate).status is Status.PROVED


def test_the_gate_passes_every_beat_in_its_cycle_unchanged():
    unit = gate()
    bench = Bench(unit)
    came, went = bench.input("i"), bench.output("o")
    bench.module.d.comb += [
        Assert(came.transfers == went.transfers, "taken on one side only"),
        Assert(~went.transfers | (unit.i.payload == unit.o.payload), "payload changed"),
    ]
    assert prove(bench.module, bench.free).status is Status.PROVED


def test_the_gate_starves_nobody():
    """Offered within `patience_cycles`, however busy compute is; and the bound is tight."""
    assert prove_progress(gate, within=PATIENCE, capacity=1).status is Status.PROVED
    assert prove_progress(gate, within=PATIENCE - 1, capacity=1).status is Status.REFUTED
