"""Row tier, block tier, block table, records: the parts by themselves."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from nearkv.codec.crc import crc32c
from nearkv.kvcache.block_table import ARRIVING, NOWHERE, BlockTable, pack_place, slot_of, tier_of
from nearkv.kvcache.block_tier import BlockTier, DriveBudget
from nearkv.kvcache.config import CacheConfig
from nearkv.kvcache.metrics import CacheMetrics
from nearkv.kvcache.rows import RowCodec, RowFormat, empty_records
from nearkv.kvcache.tier_set import TierSet
from nearkv.kvcache.tiers import HEADER_BYTES, Occupancy, RowTier, SlotState, TierConfig, TierRole
from nearkv_sim.golden.migrate_rows import expand_rows, quantise_rows

RECORD_BYTES = 16
SLOT_BYTES = RECORD_BYTES + HEADER_BYTES


def row_tier(slots: int, reserve_rows: int = 0) -> RowTier:
    return RowTier(TierConfig("hot", TierRole.ROWS, slots * SLOT_BYTES, reserve_rows), RECORD_BYTES)


def test_slots_are_free_pinned_or_evictable():
    tier = row_tier(10)
    clean, dirty = tier.take(4, SlotState.USED), tier.take(3, SlotState.DIRTY)
    assert tier.occupancy() == Occupancy(free=3, pinned=3, evictable=4, total=10)
    tier.pin(clean[:2], 1)
    tier.pin(clean[:1], 1)
    tier.pin(clean[:2], -1)  # the first is still pinned once
    tier.mark(clean[3:], SlotState.MOVING)
    assert tier.evictable_slots().tolist() == sorted(clean[1:3].tolist())
    tier.clear(dirty, SlotState.DIRTY)
    assert tier.occupancy() == Occupancy(free=3, pinned=2, evictable=5, total=10)
    tier.release(clean)  # whatever they were
    assert tier.occupancy() == Occupancy(free=7, pinned=0, evictable=3, total=10)
    with pytest.raises(ValueError, match="8 slots of hot are asked for; allowed: 7"):
        tier.take(8, SlotState.USED)
    assert tier.free == 7


def test_tiers_refuse_what_cannot_be():
    for arguments, message in (
        ({"capacity_bytes": 0}, "capacity_bytes of t is 0"),
        ({"reserve_rows": -1}, "reserve_rows of t is -1"),
        ({"drive": "nvme"}, "max_blocks and drive of t are given; allowed: of block tiers"),
        ({"role": TierRole.BLOCKS, "reserve_rows": 1}, "reserve_rows of t is 1; allowed: of row tiers"),
    ):
        with pytest.raises(ValueError, match=message):
            TierConfig(**({"name": "t", "role": TierRole.ROWS, "capacity_bytes": 100} | arguments))
    with pytest.raises(ValueError, match="more than its reserve of 4 rows"):
        row_tier(4, reserve_rows=4)
    small = TierConfig("cold", TierRole.BLOCKS, 31)
    with pytest.raises(ValueError, match="capacity_bytes of cold is 31; allowed: from 32"):
        BlockTier(small, 1, RECORD_BYTES, DriveBudget(31), 8)
    rows = TierConfig("t", TierRole.ROWS, 1000)
    blocks = TierConfig("u", TierRole.BLOCKS, 1000)
    for tiers, message in (
        ((rows, rows, blocks), "tier 't' is given 2 times"),
        ((rows,), "1 row tiers and 0 block tiers"),
        ((blocks,), "0 row tiers and 1 block tiers"),
    ):
        with pytest.raises(ValueError, match=message):
            TierSet(tiers, BlockTable(4, 1, 2), RowCodec(4, RowFormat.FP16, "m"), CacheMetrics())


@pytest.mark.parametrize("field", ["layers", "head_dim", "max_blocks", "batch_rows", "timeout_ps"])
def test_a_cache_refuses_numbers_below_one(field):
    fine = {"model": "m", "layers": 1, "kv_heads": 1, "head_dim": 4, "tiers": (), "max_blocks": 1}
    CacheConfig(**fine)
    with pytest.raises(ValueError, match=f"{field} is 0; allowed: from 1"):
        CacheConfig(**(fine | {field: 0}))


def test_the_block_unused_for_longest_is_evicted_first_and_erased():
    tier = BlockTier(
        TierConfig("cold", TierRole.BLOCKS, 1 << 20, max_blocks=3), 2, RECORD_BYTES, DriveBudget(1 << 20), 10
    )
    for block in (7, 5, 9):
        assert tier.take(block)
    assert not tier.take(4)
    with pytest.raises(ValueError, match="block 5 is in cold already"):
        tier.take(5)
    for block in (5, 7, 9, 5):
        tier.set_pinned(block, False)
    tier.set_pinned(5, True)
    tier.set_pinned(5, False)
    assert tier.oldest_evictable() == 7
    records = empty_records(2, RECORD_BYTES)
    records.rows[:] = [14, 15]
    tier.write(records.rows, records)
    assert tier.read(np.array([15, 14])).rows.tolist() == [15, 14]
    tier.release(7)
    assert tier.occupancy() == Occupancy(free=1, pinned=0, evictable=2, total=3)
    assert tier.take(8)
    assert tier.read(np.array([16])).rows.tolist() == [-1]  # nothing of block 7 is left
    with pytest.raises(ValueError, match="block 7 is not in cold"):
        tier.read(np.array([14]))
    tier._free.append(0)  # a slot given twice
    with pytest.raises(RuntimeError, match="slots of cold count as"):
        tier.occupancy()


def test_addresses_and_places_are_invertible():
    table = BlockTable(6, streams=3, block_tokens=4)
    blocks = np.array([5, 0, 2])
    rows = table.rows(blocks, np.arange(3)[:, None], np.arange(12))
    assert rows.shape == (3, 12)
    assert len(np.unique(rows)) == 36
    assert rows[1, 6] == (0 * 3 + 1) * 4 + 2
    assert (table.block_of(rows) == np.repeat(blocks, 4)).all()
    assert sorted(table.rows_of_block(5, 4)) == sorted(rows[:, :4].reshape(-1))
    slots = np.array([0, 1, (1 << 27) - 1])
    for tier in (0, 15):
        assert (slot_of(pack_place(tier, slots)) == slots).all()
        assert (tier_of(pack_place(tier, slots)) == tier).all()
    assert tier_of(np.array([NOWHERE, ARRIVING], np.int32)).max() < 0


def test_hit_rates_decay_by_an_eighth_and_saturate():
    table = BlockTable(2, streams=1, block_tokens=2)
    rate = 0
    for _ in range(40):
        table.count_hits(np.array([0]), np.array([1]))
        rate = min(rate - (rate >> 3) + (65535 >> 3), 65535)
    assert table.rate.reshape(-1).tolist() == [0, rate, 0, 0]
    table.count_hits(np.array([0]), np.empty(0, np.int64))
    assert table.rate.reshape(-1)[1] == rate - (rate >> 3)


def test_a_new_generation_comes_with_every_use_of_a_block_number():
    table = BlockTable(1, 1, 2)
    generations = []
    for _ in range(3):
        generations.append(table.generation[table.take()])
        table.release(0)
    assert generations == [1, 2, 3]


def test_metadata_are_at_most_8_bytes_per_token_layer_and_kv_head(rig_of):
    """Blocks of 128 tokens, 8 streams, a fifth of the rows hot; headers of records are not among them."""
    tokens, streams = 1 << 14, (2, 4)
    rig = rig_of(
        hot_rows=tokens * 8 // 5,
        cold_blocks=tokens // 128,
        max_blocks=tokens // 128,
        streams=streams,
        block_tokens=128,
    )
    per_row = rig.cache.metadata_bytes / (tokens * 8)
    assert 7 < per_row <= 8
    table = rig.cache._table
    assert table.place.itemsize + table.rate.itemsize == 6


@pytest.mark.parametrize("row_format", RowFormat)
def test_records_return_their_rows_and_check_values_cover_identity(row_format):
    codec = RowCodec(64, row_format, "model")
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 9, 64)).astype(np.float16)
    rows, generation = np.arange(9) + 1000, np.full(9, 3, np.uint32)
    records = codec.make(rows, generation, keys, values)
    assert records.data.shape == (9, codec.record_bytes)
    back = codec.rows_of(records.data)
    for got, sent in zip(back, (keys, values), strict=True):
        assert (got == (sent if row_format is RowFormat.FP16 else expand_rows(*quantise_rows(sent)))).all()
    assert codec.good(records, rows, generation).all()
    assert not codec.good(records, rows + 1, generation).any()
    assert not codec.good(records, rows, generation + np.uint32(1)).any()
    for other in (RowCodec(64, row_format, "other"), RowCodec(32, row_format, "model")):
        assert not other.good(records, rows, generation).any()
    for field in ("rows", "generation"):  # a header that lies about whose bytes these are
        lying = codec.readdress(records, rows, generation)
        setattr(lying, field, getattr(lying, field) + np.ones(1, getattr(lying, field).dtype))
        assert not codec.good(lying, lying.rows, lying.generation).any()


def test_the_check_value_is_crc32c_of_identity_and_bytes():
    codec = RowCodec(4, RowFormat.FP16, "m")
    row = np.zeros((1, 4), np.float16)
    record = codec.make(np.array([258]), np.array([7], np.uint32), row, row)
    header = np.array([2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0], np.uint8)
    digest = codec.check_values(np.array([258]), np.array([7], np.uint32), record.data)
    tag = np.frombuffer(zlib.crc32(b"fp16/4/m").to_bytes(4, "little"), np.uint8)
    assert digest[0] == crc32c(np.concatenate([header, tag, np.zeros(16, np.uint8)]))


@pytest.mark.parametrize("largest", [6e-8, 1.0, 100.0, 65504.0])
def test_int8_rows_are_those_of_the_migration_interface(largest):
    codec = RowCodec(32, RowFormat.INT8, "m")
    rng = np.random.default_rng(1)
    rows = (rng.uniform(-1, 1, (2000, 32)) * largest).astype(np.float16)
    rows[:, 0] = np.float16(largest)
    rows[0] = 0
    record = codec.make(np.arange(2000), np.zeros(2000, np.uint32), rows, -rows)
    codes, scales = quantise_rows(rows)
    assert (record.data[:, :32].view(np.int8) == codes).all()
    assert (np.ascontiguousarray(record.data[:, 64:66]).view(np.float16)[:, 0] == scales).all()
    keys, values = codec.rows_of(record.data)
    assert (keys == expand_rows(codes, scales)).all()
    assert (values == -keys).all()
