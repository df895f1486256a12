"""The command schedule of a channel: counts, order, halves, the published irregularities."""

import pytest

from nearkv_sim.hardware.dram.command import Command
from nearkv_sim.hardware.pim.config import pim_profile
from nearkv_sim.hardware.pim.schedule import channel_schedule, head_shape

LEVELS = ("bank", "bank_group", "buffer_die")


def config(level):
    return pim_profile(f"attacc_{level}").config


def moves(tiles, command):
    return [move for tile in tiles for move in (*tile.before, *tile.after) if move.command is command]


@pytest.mark.parametrize(
    ("level", "token_groups", "slices", "query", "results", "weights", "outputs"),
    [
        # 2 pseudo-channels × 2 ranks × 4 groups score 16 tokens; 4 banks × 16 lanes hold 64 channels.
        ("bank", 128, 2, 8, 8, 64, 8),
        ("bank_group", 128, 8, 8, 8, 64, 2),
        ("buffer_die", 1024, 8, 8, 1, 64, 1),
    ],
)
def test_shape_of_2048_tokens(level, token_groups, slices, query, results, weights, outputs):
    shape = head_shape(config(level), 2048, 128, 2)
    assert (shape.token_groups, shape.slices) == (token_groups, slices)
    assert tuple(map(len, (shape.query, shape.results, shape.weights, shape.outputs))) == (
        query,
        results,
        weights,
        outputs,
    )


def test_a_unit_that_serves_two_banks_takes_two_commands():
    """Aquabolt-XL: 8 units, 16 banks: half the channels of a head per command."""
    aquabolt = pim_profile("aquabolt_xl").config
    assert aquabolt.banks_per_unit == 2
    assert head_shape(aquabolt, 64, 128, 2).slices == 4  # 2 units of 16 lanes per group


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_every_command_is_there_once(level, rounds):
    shape = head_shape(config(level), 1000, 128, 2)
    tiles = list(channel_schedule(shape, rounds))
    assert sum(tile.macs.count for tile in tiles if tile.macs) == rounds * shape.macs
    assert len(moves(tiles, Command.WR_GB)) == rounds * len(shape.query)
    assert len(moves(tiles, Command.MV_GB)) == rounds * len(shape.weights)
    assert len(moves(tiles, Command.SOFTMAX)) == rounds
    score_tiles = -(-shape.token_groups // 16)
    results = score_tiles * len(shape.results) + shape.slices * len(shape.outputs)
    assert len(moves(tiles, Command.MV_SB)) == rounds * results
    # Keys and values of every head: a matrix each, read from start to end without a gap.
    places = {}
    for tile in tiles:
        if tile.macs:
            assert tile.macs.first == places.get(tile.macs.matrix, 0)
            places[tile.macs.matrix] = tile.macs.first + tile.macs.count
    assert len(places) == 2 * rounds


def test_softmax_of_a_head_comes_before_its_weights_and_after_its_scores():
    shape = head_shape(config("bank"), 2048, 128, 2)
    order = []
    for tile in channel_schedule(shape, 2):
        if tile.macs:
            order.append(f"matrix {tile.macs.matrix}")
        order += [move.command.label for move in (*tile.before, *tile.after)]
    first_softmax = order.index("SOFTMAX")
    assert "matrix 0" not in order[first_softmax:]
    assert first_softmax < order.index("MV_GB") < order.index("matrix 2")


def test_published_irregularities():
    shape = head_shape(config("bank"), 2048, 128, 2)
    paired = list(channel_schedule(shape, 2, as_published=True))
    assert sum(tile.macs.count for tile in paired if tile.macs) == 2 * shape.macs + 1
    assert {tile.macs.matrix for tile in paired if tile.macs} == {0, 1, 2}
    single = list(channel_schedule(shape, 1, as_published=True))
    assert len(moves(single, Command.SOFTMAX)) == 8 + 1  # 8 score tiles
    assert len(moves(single, Command.MV_GB)) == 9 * len(shape.weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 128, 2), "tokens is 0; allowed is an integer from 1"),
        ((1, 0, 2), "head_dim is 0; allowed is an integer from 1"),
        ((1, 128, 3), "element_bytes is 3; allowed: a divisor of 32"),
    ],
)
def test_bad_shapes(arguments, message):
    with pytest.raises(ValueError, match=message):
        head_shape(config("bank"), *arguments)


def test_bad_rounds():
    with pytest.raises(ValueError, match="rounds is 0; allowed is an integer from 1"):
        next(channel_schedule(head_shape(config("bank"), 16, 128, 2), 0))
