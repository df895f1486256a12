from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv_hdl.spec.design import DesignConfig, Family
from nearkv_hdl.spec.designs import DESIGNS, KU15P, get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.topk_config import TopKConfig


def design(**changes) -> DesignConfig:
    fields = {
        "name": "custom",
        "device": KU15P,
        "bus_bytes": 64,
        "lanes": 64,
        "query_group": 8,
        "head_dims": (64, 128, 256),
        "clock_hz": 300_000_000,
    }
    return DesignConfig(**{**fields, **changes})


def test_beats_of_the_usual_block():
    """head_dim 128 on 64 lanes and 64 bytes: 256 lane beats and as many bus beats, so neither waits."""
    usual = design()
    assert usual.lane_beats_per_block(128) == usual.bus_beats(128, KeyFormat.INT8) == 256
    assert usual.bus_beats(128, KeyFormat.INT4) == 128
    assert usual.lane_beats_per_plane_beat == 2
    assert usual.query_beats(128) == 16
    assert usual.macs == 512
    # Two planes of 16 KiB and half a plane at head_dim 256: 40 KiB and the margin.
    assert usual.plane_rows * 64 == 16 << 10
    assert (usual.low_queue_rows - 8) * 64 == 8 << 10


def test_every_named_design_fits_its_device():
    names = ["tiny", "ulx3s_85f", "ecp5_5g_85f", "smartssd_ku15p", "native_pcie", "alveo_u50"]
    assert list(DESIGNS) == names
    for name, named in DESIGNS.items():
        assert named.name == name
        # 40 % of a part that shares its chip with a bus shell are the shell's.
        share = 0.6 if named.device.family is Family.ULTRASCALE_PLUS else 1.0
        assert named.macs <= share * named.device.dsps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bus_bytes": 48}, "bus_bytes is 48; allowed: a power of two"),
        ({"bus_bytes": 256}, "bus_bytes is 256"),
        ({"lanes": 3}, "lanes is 3"),
        ({"bus_bytes": 4, "lanes": 16}, "lanes is 16 with bus_bytes 4; allowed: at most 8"),
        ({"bus_bytes": 128, "lanes": 128}, "lanes is 128 with head_dim 64"),
        ({"query_group": 0}, "query_group is 0; allowed: 1 to 8"),
        ({"query_group": 9}, "query_group is 9"),
        ({"head_dims": (96,)}, r"head_dims is \(96,\)"),
        ({"head_dims": ()}, "head_dims is"),
        ({"head_dims": (128, 64)}, "ascending"),
        ({"clock_hz": 0}, "clock_hz is 0"),
        ({"query_bits": 7}, "query_bits is 7"),
        ({"block_tokens": 4}, "block_tokens is 4; allowed: at least 8"),
        ({"block_tokens": 100}, "block_tokens is 100"),
        ({"key_masters": 0}, "key_masters is 0; allowed: a power of two up to 4"),
        ({"key_masters": 3, "key_bank_bytes": 4096}, "key_masters is 3"),
        ({"key_masters": 8, "key_bank_bytes": 4096}, "key_masters is 8"),
        ({"key_bank_bytes": 4096}, "key_bank_bytes is 4096; allowed: 0, since there is one key master"),
        ({"key_masters": 2}, "key_bank_bytes is 0; allowed: a power of two from 4096 to 4611686018427387904"),
        ({"key_masters": 2, "key_bank_bytes": 2048}, "key_bank_bytes is 2048"),
        ({"key_masters": 2, "key_bank_bytes": 12_288}, "key_bank_bytes is 12288"),
        ({"key_masters": 4, "key_bank_bytes": 1 << 63}, "with 4 key masters"),
    ],
)
def test_designs_that_cannot_be_built_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        design(**changes)


def test_blocks_are_read_by_the_master_of_their_bank():
    one, two = design(), design(key_masters=2, key_bank_bytes=8192)
    addresses = [0, 8191, 8192, 12_288, 16_384, (1 << 64) - 1]
    assert [one.key_master(address) for address in addresses] == [0] * 6
    assert [two.key_master(address) for address in addresses] == [0, 0, 1, 1, 0, 1]
    widest = design(key_masters=4, key_bank_bytes=1 << 62)
    assert [widest.key_master(quarter << 62) for quarter in range(4)] == [0, 1, 2, 3]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="design is 'u280'; allowed: tiny, ulx3s_85f"):
        get_design("u280")
    with pytest.raises(ValueError, match="head_dim is 256; design ulx3s_85f allows: 64, 128"):
        get_design("ulx3s_85f").check_head_dim(256)


def test_topk_units_fit_the_blocks():
    topk = TopKConfig(capacity=512, lanes=2, token_run=32, candidate_rows=8)
    assert replace(DESIGNS["tiny"], topk=topk).topk_capacity == 512
    assert DESIGNS["tiny"].topk_capacity == 0
    with pytest.raises(ValueError, match="topk has token_run 32; allowed: a divisor of block_tokens, 16"):
        replace(DESIGNS["tiny"], block_tokens=16, topk=topk)
