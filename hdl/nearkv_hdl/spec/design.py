"""`DesignConfig`: one frozen description of a build, and everything that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_hdl.spec.formats import CODE, Format, folded_query, is_power_of_two
from nearkv_hdl.spec.layout import (
    BLOCK_ALIGN_BYTES,
    BLOCK_TOKENS,
    HEAD_DIMS,
    MAX_QUERY_GROUP,
    KeyBlockLayout,
    KeyFormat,
)
from nearkv_hdl.spec.multiplier import Family as Family  # part of a device, so that it is found here too
from nearkv_hdl.spec.multiplier import MacVariant, check_variant, default_variant
from nearkv_hdl.spec.topk_config import TopKConfig

# By the cycle formula the first three extra rows, which cover the cycles from a row's arrival to its first
# lane beat, are what keeps bus and lanes from ever waiting for each other at full rate (without them up to
# 1.9 % of the cycles are lost); the others ride out short pauses of the source.
LOW_QUEUE_MARGIN_ROWS = 8

MAX_KEY_MASTERS = 4
MAX_KEY_BANK_BYTES = 1 << 62  # so that every master has a bank within 64-bit addresses


@dataclass(frozen=True)
class Device:
    """A part and what it holds. Counts: vendor product tables (DS890, DS965, FPGA-DS-02012)."""

    part: str
    family: Family
    luts: int
    flip_flops: int
    dsps: int
    brams: int  # RAMB36 on UltraScale+, 18 Kbit DP16KD on ECP5
    urams: int = 0


@dataclass(frozen=True)
class DesignConfig:
    """Parameters of a scorer build.

    Args:
        name: what the command line calls it.
        device: the part it is synthesised for.
        bus_bytes: width of the key stream, a power of two from 4 to 128.
        lanes: 8-bit multipliers per query head, a power of two from 4; at most 2·bus_bytes (an INT4
            beat carries two codes per byte) and at most the smallest head_dim.
        query_group: query heads that share one key stream, 1 to 8.
        head_dims: head dimensions a job may ask for, a subset of 64, 128, 256 in ascending order.
        query_bits: width of a folded query code, 8, 10 or 12.
        clock_hz: clock the cycle counts are turned into time with.
        block_tokens: tokens of a key block, 128 in layout version 1; smaller in tests.
        variant: how products are mapped to DSP blocks; None takes `default_variant` of the device's family.
        topk: the top-k unit that the kernel has for each query head; None for none.
        key_masters: memory ports that the kernel reads key planes through, a power of two up to 4.
        key_bank_bytes: with several, bytes of memory behind one port, before those of the next: a power of
            two from 4,096 to 2^62; with one, 0. Every port reaches all of the memory: banks decide who
            reads a block, so how fast, never what.

    Raises ValueError that quotes the value and says what is allowed.

    """

    name: str
    device: Device
    bus_bytes: int
    lanes: int
    query_group: int
    head_dims: tuple[int, ...]
    clock_hz: int
    query_bits: int = 8
    block_tokens: int = BLOCK_TOKENS
    variant: MacVariant | None = None
    topk: TopKConfig | None = None
    key_masters: int = 1
    key_bank_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be built."""
        if not (is_power_of_two(self.bus_bytes) and 4 <= self.bus_bytes <= 128):
            raise ValueError(f"bus_bytes is {self.bus_bytes}; allowed: a power of two from 4 to 128")
        if not (is_power_of_two(self.lanes) and self.lanes >= 4):
            raise ValueError(f"lanes is {self.lanes}; allowed: a power of two from 4")
        if self.lanes > 2 * self.bus_bytes:
            raise ValueError(
                f"lanes is {self.lanes} with bus_bytes {self.bus_bytes}; allowed: at most"
                f" {2 * self.bus_bytes}, the codes that an INT4 beat carries"
            )
        if not 1 <= self.query_group <= MAX_QUERY_GROUP:
            raise ValueError(f"query_group is {self.query_group}; allowed: 1 to {MAX_QUERY_GROUP}")
        if not self.head_dims or list(self.head_dims) != sorted(set(self.head_dims) & set(HEAD_DIMS)):
            raise ValueError(
                f"head_dims is {self.head_dims}; allowed: some of"
                f" {', '.join(map(str, HEAD_DIMS))} in ascending order"
            )
        if self.lanes > self.head_dims[0]:
            raise ValueError(
                f"lanes is {self.lanes} with head_dim {self.head_dims[0]}; allowed: at most head_dim,"
                " since a lane beat holds channels of one token"
            )
        if self.clock_hz <= 0:
            raise ValueError(f"clock_hz is {self.clock_hz}; allowed: above 0")
        if self.topk and self.block_tokens % self.topk.token_run:
            raise ValueError(
                f"topk has token_run {self.topk.token_run}; allowed: a divisor of block_tokens,"
                f" {self.block_tokens}, since tokens follow each other within a block alone"
            )
        self._check_masters()
        check_variant(self.mac_variant, self.device.family, self.query_code, self.query_group)
        for head_dim in self.head_dims:
            layout = KeyBlockLayout(head_dim, self.block_tokens)
            if layout.plane_bytes < 4 * self.bus_bytes:
                raise ValueError(
                    f"block_tokens is {self.block_tokens}; allowed: at least"
                    f" {8 * self.bus_bytes // head_dim} for head_dim {head_dim} and bus_bytes"
                    f" {self.bus_bytes}, so that a plane has four beats"
                )

    def _check_masters(self) -> None:
        masters, nbytes = self.key_masters, self.key_bank_bytes
        if not (is_power_of_two(masters) and masters <= MAX_KEY_MASTERS):
            raise ValueError(f"key_masters is {masters}; allowed: a power of two up to {MAX_KEY_MASTERS}")
        if masters == 1 and nbytes != 0:
            raise ValueError(f"key_bank_bytes is {nbytes}; allowed: 0, since there is one key master")
        fits = is_power_of_two(nbytes) and BLOCK_ALIGN_BYTES <= nbytes <= MAX_KEY_BANK_BYTES
        if masters > 1 and not fits:
            raise ValueError(
                f"key_bank_bytes is {nbytes}; allowed: a power of two from {BLOCK_ALIGN_BYTES} to"
                f" {MAX_KEY_BANK_BYTES} with {masters} key masters"
            )

    def check_head_dim(self, head_dim: int) -> None:
        """Raise ValueError unless this design scores keys of that head dimension."""
        if head_dim not in self.head_dims:
            raise ValueError(
                f"head_dim is {head_dim}; design {self.name} allows: {', '.join(map(str, self.head_dims))}"
            )

    def layout(self, head_dim: int) -> KeyBlockLayout:
        """Key block layout for one of the design's head dimensions."""
        self.check_head_dim(head_dim)
        return KeyBlockLayout(head_dim, self.block_tokens)

    def key_master(self, address: int) -> int:
        """Index of the master that reads the planes of a block at that device address."""
        return address // self.key_bank_bytes % self.key_masters if self.key_masters > 1 else 0

    @property
    def topk_capacity(self) -> int:
        """Most scores that the kernel selects from; 0 without top-k units."""
        return self.topk.capacity if self.topk else 0

    # Formats along the data path.

    @property
    def query_code(self) -> Format:
        """One folded query code."""
        return folded_query(self.query_bits)

    @property
    def product(self) -> Format:
        """Code times query code."""
        return CODE.product(self.query_code)

    @property
    def lane_sum(self) -> Format:
        """Sum over the lanes of one beat."""
        return self.product.sum_of(self.lanes)

    @property
    def dot(self) -> Format:
        """Sum over all channels of a token at the largest head_dim."""
        return self.product.sum_of(self.head_dims[-1])

    # Beats.

    @property
    def lane_beats_per_plane_beat(self) -> int:
        """Lane beats that one beat of a plane (2·bus_bytes nibbles) feeds."""
        return 2 * self.bus_bytes // self.lanes

    def lane_beats_per_token(self, head_dim: int) -> int:
        """Lane beats of one token: its scores leave at this interval."""
        self.check_head_dim(head_dim)
        return head_dim // self.lanes

    def lane_beats_per_block(self, head_dim: int) -> int:
        """Cycles for which the lanes work on one block."""
        return self.block_tokens * self.lane_beats_per_token(head_dim)

    def plane_beats(self, head_dim: int) -> int:
        """Bus beats of one nibble plane."""
        return self.layout(head_dim).plane_bytes // self.bus_bytes

    def bus_beats(self, head_dim: int, key_format: KeyFormat) -> int:
        """Bus beats of one block as streamed."""
        return self.plane_beats(head_dim) * (2 if key_format is KeyFormat.INT8 else 1)

    def query_beats(self, head_dim: int) -> int:
        """Beats of a block's folded queries on the query port (`lanes` codes a beat, head by head)."""
        return self.query_group * self.lane_beats_per_token(head_dim)

    # Multipliers.

    @property
    def macs(self) -> int:
        """Products of the scorer in one cycle."""
        return self.lanes * self.query_group

    @property
    def mac_variant(self) -> MacVariant:
        """How these products are mapped to DSP blocks."""
        return self.variant or default_variant(self.device.family, self.query_code, self.query_group)

    @property
    def dsp_blocks(self) -> int:
        """DSP blocks of the scorer: one per product, or per two; an odd head of packed heads has its own."""
        if self.mac_variant is MacVariant.PACKED_HEADS:
            return self.lanes * -(-self.query_group // 2)
        return self.macs // 2 if self.mac_variant is MacVariant.PACKED_KEYS else self.macs

    # On-chip memories.

    @property
    def plane_rows(self) -> int:
        """Rows (bus beats) of one high-plane buffer; there are two."""
        return self.plane_beats(self.head_dims[-1])

    @property
    def low_queue_rows(self) -> int:
        """Rows of the low-plane queue: half a plane, plus a margin.

        The queue fills with 1 row per cycle and empties with 1 / lane_beats_per_plane_beat.
        """
        return self.plane_rows // 2 + LOW_QUEUE_MARGIN_ROWS
