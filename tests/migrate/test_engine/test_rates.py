"""How full the buses are: moves of 64 KiB in a row, rows of four beats, near and far memories."""

from __future__ import annotations

import pytest

from nearkv_hdl.spec.migration import Move
from nearkv_sim.golden.migrate_engine import MoveDescriptor

DEVICE, FAR = 0, 1  # sequence slots of the table
BLOCK_TOKENS = 1024  # 64 KiB of tiny_pim, whose rows are four beats of 8 bytes
MOVES, BEATS = 4, (64 << 10) // 8
# Reader's queue, widening, buffer, narrowing, writer: from the beat that completes half a tile to the first.
CYCLES_THROUGH = 2 + 1 + 5 + 1 + 1


@pytest.fixture(params=[20, 200], ids=lambda cycles: f"{cycles}-cycles")
def world(request, make_world):
    return make_world(
        setup={
            "block_tokens": BLOCK_TOKENS,
            "blocks": 8,
            "device_base": 1 << 20,
            "far_base": 2 << 20,
            "latency_cycles": request.param,
            "hidden_cycles": max(100, request.param),
        }
    )


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
def test_both_buses_have_a_beat_in_every_cycle(world, up):
    """From first to last, rows of 32 bytes being transfers of their own on one of them."""
    flags = Move.RELAYOUT | (Move.UP if up else Move.COPY)
    source, destination = (FAR, DEVICE) if up else (DEVICE, FAR)
    result, _ = world.run(
        [
            MoveDescriptor(n, (source, n), (destination, 4 + n), BLOCK_TOKENS, 0, flags, n, 4 + n)
            for n in range(MOVES)
        ]
    )
    names = ("o_far_read", "o_device_write") if up else ("o_device_read", "o_far_write")
    reads, writes = (result.flags[name] for name in names)
    for port in (reads, writes):
        assert port.high_cycles == MOVES * BEATS == port.last_high_cycle - port.first_high_cycle + 1
    half_beats = world.layout.half_tile_bytes // 8
    assert writes.first_high_cycle - reads.first_high_cycle == half_beats - 1 + CYCLES_THROUGH
