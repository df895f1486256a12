"""The commands that one channel gets for attention: phases, tiles, and the moves that overlap them.

The mapping is AttAcc's (Park et al., "AttAcc! Unleashing the Power of PIM for Batched Transformer-based
Generative Model Inference", ASPLOS 2024, and its command generator, scale-snu/attacc_simulator, MIT licence):
a channel works on one head at a time, heads go round the channels, and two heads are interleaved so that the
softmax and the loads of one lie beside the multiplications of the other:

    scores 0 | scores 1, softmax 0 | values 0, softmax 1 | values 1

A barrier ends every tile: later multiplications and moves wait, later row commands do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nearkv_sim.hardware.dram.command import Command
from nearkv_sim.hardware.dram.config import MOST
from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.pim.config import BANK, BUFFER_DIE, PimConfig

TILE_GROUPS = 16  # token groups per tile: the lanes that one MV_SB carries away


@dataclass(frozen=True)
class Move:
    """One command on the data path beside the banks, to the unit of one rank and group."""

    command: Command
    rank: int = 0
    group: int = 0


@dataclass(frozen=True)
class Macs:
    """`count` MAC commands over consecutive places of matrix number `matrix`, from place `first` on."""

    matrix: int
    first: int
    count: int


@dataclass(frozen=True)
class Tile:
    """What lies between two barriers, in queue order."""

    before: tuple[Move, ...]
    macs: Macs | None
    after: tuple[Move, ...]


@dataclass(frozen=True)
class HeadShape:
    """One head's work in one channel.

    Attributes:
        token_groups: groups of tokens that are scored side by side.
        slices: MAC commands for one token group's keys, and passes over the values.
        query, results, weights, outputs: moves that load the query, take a tile's scores away, load the
            weights, take a pass's outputs away.

    """

    token_groups: int
    slices: int
    query: tuple[Move, ...]
    results: tuple[Move, ...]
    weights: tuple[Move, ...]
    outputs: tuple[Move, ...]

    @property
    def macs(self) -> int:
        """MAC commands: scores and values."""
        return 2 * self.token_groups * self.slices


def head_shape(config: PimConfig, tokens: int, head_dim: int, element_bytes: int) -> HeadShape:
    """How one head is cut: tokens over pseudo-channels, ranks and groups, channels of the head over banks.

    ValueError: tokens or head_dim below 1, or an element that a unit cannot hold.
    """
    require_integer("tokens", tokens, 1, MOST)
    require_integer("head_dim", head_dim, 1, MOST)
    require_integer("element_bytes", element_bytes, 1, config.unit_bytes)
    if config.unit_bytes % element_bytes:
        raise ValueError(f"element_bytes is {element_bytes}; allowed: a divisor of {config.unit_bytes}")
    dram = config.dram_config
    lanes = config.unit_bytes // element_bytes
    bank_units = dram.banks // config.banks_per_unit if config.level == BANK else 1
    if config.level == BUFFER_DIE:
        ranks, groups = range(1), range(1)
    else:
        ranks, groups = range(dram.ranks), range(dram.groups)
    parallel_tokens = dram.pseudo_channels * len(ranks) * len(groups)
    slices = -(-head_dim // (lanes * bank_units))
    weight_moves = -(-tokens // (parallel_tokens * lanes))
    C = Command
    return HeadShape(
        token_groups=-(-tokens // parallel_tokens),
        slices=slices,
        query=(Move(C.WR_GB),) * (slices * bank_units),
        results=tuple(Move(C.MV_SB, rank, group) for group in groups for rank in ranks),
        weights=tuple(move for r in ranks for g in groups for move in (Move(C.MV_GB, r, g),) * weight_moves),
        outputs=tuple(Move(C.MV_SB, rank) for _ in range(bank_units) for rank in ranks),
    )


def _share(moves: tuple[Move, ...], tiles: int, tile: int) -> tuple[Move, ...]:
    """Tile `tile`'s part of moves that are spread over `tiles` tiles."""
    return moves[len(moves) * tile // tiles : len(moves) * (tile + 1) // tiles]


def _late_share(moves: tuple[Move, ...], tiles: int, tile: int) -> tuple[Move, ...]:
    """The same in the second half only: the softmax before must have ended."""
    first = tiles // 2
    return _share(moves, tiles - first, tile - first) if tile >= first else ()


class _Writer:
    """Joins what has no barrier between it, and yields tiles."""

    def __init__(self, shape: HeadShape) -> None:
        self._shape = shape
        self._carried: tuple[Move, ...] = ()  # moves after the last barrier of a phase
        self.score_tiles = -(-shape.token_groups // TILE_GROUPS)

    def tile(self, macs: Macs | None, after: tuple[Move, ...] = (), before: tuple[Move, ...] = ()) -> Tile:
        tile = Tile(self._carried + before, macs, after)
        self._carried = ()
        return tile

    def phase(
        self, parts: list[Macs], done: tuple[Move, ...], beside: list[tuple[Move, ...]]
    ) -> Iterator[Tile]:
        """A tile per part: its MACs, the part before's results, other moves of `beside`."""
        for index, macs in enumerate(parts):
            after = (done if index else ()) + beside[index]
            yield self.tile(macs, after)
        self._carried = done

    def score_parts(self, matrix: int) -> list[Macs]:
        per_tile = TILE_GROUPS * self._shape.slices
        total = self._shape.token_groups * self._shape.slices
        return [Macs(matrix, first, min(per_tile, total - first)) for first in range(0, total, per_tile)]

    def value_parts(self, matrix: int) -> list[Macs]:
        groups = self._shape.token_groups
        return [Macs(matrix, index * groups, groups) for index in range(self._shape.slices)]

    def end(self) -> Iterator[Tile]:
        if self._carried:
            yield self.tile(None)


def channel_schedule(shape: HeadShape, rounds: int, *, as_published: bool = False) -> Iterator[Tile]:
    """Tiles of a channel that works on `rounds` heads, one after the other. ValueError for rounds below 1.

    Args:
        shape: of every head.
        rounds: heads.
        as_published: repeat three irregularities of the published generator, for comparison with its
            results: one multiplication too many at the start, softmax and weight loads of a last unpaired
            head once per score tile, and the second head of a pair rereading the first one's values.

    """
    require_integer("rounds", rounds, 1, MOST)
    writer = _Writer(shape)
    tiles, passes = writer.score_tiles, shape.slices
    softmax = (Move(Command.SOFTMAX),)
    matrix = 0
    for first in range(0, rounds - 1, 2):
        keys = matrix, matrix + 1
        values = matrix + 2, matrix + (2 if as_published else 3)
        matrix += 4
        extra = Macs(keys[0], 0, 1) if as_published and first == 0 else None
        yield writer.tile(extra, before=shape.query)
        loads = [_share(shape.query, tiles, tile) for tile in range(tiles)]
        yield from writer.phase(writer.score_parts(keys[0]), shape.results, loads)
        late = [
            (softmax if tile == 0 else ()) + _late_share(shape.weights, tiles, tile) for tile in range(tiles)
        ]
        yield from writer.phase(writer.score_parts(keys[1]), shape.results, late)
        late = [
            (softmax if index == 0 else ()) + _late_share(shape.weights, passes, index)
            for index in range(passes)
        ]
        yield from writer.phase(writer.value_parts(values[0]), shape.outputs, late)
        yield from writer.phase(writer.value_parts(values[1]), shape.outputs, [()] * passes)
    if rounds % 2:
        yield writer.tile(None, before=shape.query)
        for index, macs in enumerate(writer.score_parts(matrix)):
            yield writer.tile(macs, shape.results if index else ())
            if as_published:
                yield writer.tile(None, before=softmax + shape.weights)
        yield writer.tile(None, before=shape.results + softmax + shape.weights)
        yield from writer.phase(writer.value_parts(matrix + 1), shape.outputs, [()] * passes)
    yield from writer.end()
