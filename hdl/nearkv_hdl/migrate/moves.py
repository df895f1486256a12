"""What the migration engine is told, what it answers, and what its parts say to one another."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.lib import data

from nearkv_hdl.spec.migration import Move, MoveCode, PimLayout

CODE_BITS = max(MoveCode).bit_length()
TAG_BITS = 16
GENERATION_BITS = 32
BYTES_BITS = 32
FLAG_BITS = max(Move).bit_length()


@dataclass(frozen=True)
class MoveShapes:
    """Layouts of the engine's streams.

    Args:
        layout: of the PIM side.
        slot_bits, block_bits: of a (sequence slot, logical block), from 1; the table has 2^(both) entries.
        address_bits: of addresses, 32 to 64.
        tiles_bits: of the tiles of a job of several merged moves, at least a block's, at most 16.

    Raises ValueError for a width outside its range.

    """

    layout: PimLayout
    slot_bits: int = 8
    block_bits: int = 12
    address_bits: int = 64
    tiles_bits: int = 12

    def __post_init__(self) -> None:
        """Check the widths."""
        least_tiles = self.layout.block_tiles.bit_length()
        for name, least, most in (
            ("slot_bits", 1, 16),
            ("block_bits", 1, 28),
            ("address_bits", BYTES_BITS, 64),
            ("tiles_bits", least_tiles, 16),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: {least} to {most}")

    @property
    def token_bits(self) -> int:
        """Of a number of tokens up to a block's."""
        return self.layout.block_tokens.bit_length()

    @property
    def block(self) -> data.StructLayout:
        """A logical block: row and column of the block table."""
        return data.StructLayout({"block": self.block_bits, "slot": self.slot_bits})

    @property
    def request(self) -> data.StructLayout:
        """A block to translate; with `check` only in this generation."""
        return data.StructLayout({"block": self.block, "generation": GENERATION_BITS, "check": 1})

    @property
    def translation(self) -> data.StructLayout:
        """What the table says, and a MoveCode: DONE, ABSENT, STALE, OUTSIDE or TABLE_ERROR."""
        return data.StructLayout(
            {"address": self.address_bits, "generation": GENERATION_BITS, "code": CODE_BITS}
        )

    @property
    def descriptor(self) -> data.StructLayout:
        """One move: `tokens` tokens from `first_token` of a block, whole tiles.

        `generation` is the source entry's; the destination entry's is `destination_generation`, unless the
        move is difference-only.
        """
        return data.StructLayout(
            {
                "tag": TAG_BITS,
                "flags": FLAG_BITS,
                "source": self.block,
                "destination": self.block,
                "first_token": self.token_bits,
                "tokens": self.token_bits,
                "generation": GENERATION_BITS,
                "destination_generation": GENERATION_BITS,
            }
        )

    @property
    def job(self) -> data.StructLayout:
        """Tiles that lie one behind the other on both sides; addresses of the first."""
        return data.StructLayout(
            {
                "source": self.address_bits,
                "destination": self.address_bits,
                "tiles": self.tiles_bits,
                "flags": FLAG_BITS,
            }
        )

    @property
    def plan(self) -> data.StructLayout:
        """A descriptor made ready: its job and the addresses behind it, or why there is none."""
        return data.StructLayout(
            {
                "job": self.job,
                "source_end": self.address_bits,
                "destination_end": self.address_bits,
                "bytes": BYTES_BITS,
                "tag": TAG_BITS,
                "code": CODE_BITS,
                "block": self.block,
            }
        )

    @property
    def entry(self) -> data.StructLayout:
        """A descriptor in the ledger: whether it depends on a job, and whether on the next one."""
        return data.StructLayout(
            {
                "tag": TAG_BITS,
                "code": CODE_BITS,
                "block": self.block,
                "bytes": BYTES_BITS,
                "moves": 1,
                "opens": 1,
            }
        )

    @property
    def completion(self) -> data.StructLayout:
        """How a move ended: its MoveCode, bytes written (0 unless DONE), and the block of the failure."""
        return data.StructLayout(
            {"tag": TAG_BITS, "code": CODE_BITS, "bytes": BYTES_BITS, "block": self.block}
        )
