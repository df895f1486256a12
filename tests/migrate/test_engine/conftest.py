"""Memories with what is known of them twice: in the compiled engine's bench and in the golden model."""

from __future__ import annotations

import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from amaranth.lib import data

from nearkv_hdl.spec.migration import BlockEntry, MoveCode
from nearkv_sim.cosim import CompiledComponent
from nearkv_sim.cosim.words import pack_words, unpack_words
from nearkv_sim.golden.migrate_engine import MigrationModel, MoveCompletion
from nearkv_sim.golden.migrate_rows import to_records

BENCH = runpy.run_path(str(Path(__file__).with_name("bench.py")))
Setup, CONDITIONS, SLOT_BLOCKS = BENCH["Setup"], BENCH["CONDITIONS"], BENCH["SLOT_BLOCKS"]
DEVICE, FAR = 0, 1  # sequence slots of the table


@cache
def compiled(setup):
    widths = "-".join(map(str, (setup.device_bytes, *setup.far_bytes)))
    name = f"engine-{setup.name}-{widths}-{setup.latency_cycles}"
    return CompiledComponent(BENCH["EngineBench"](setup), name=name, flatten=False)


class World:
    """Memory images, the RTL that holds them, and the golden model that changes them."""

    patience_cycles = BENCH["PATIENCE_CYCLES"]

    def __init__(self, setup, seed=1, busy=0, fails=None, bad_row=0):
        rng = np.random.default_rng(seed)
        self.setup = setup
        self.layout, self.shapes, self.blocks = setup.layout, setup.shapes, setup.blocks
        self.image_bytes = setup.image_bytes
        self.device_base, self.far_base = setup.device_base, setup.far_base
        self.rtl = compiled(setup)
        self.rtl.reset()
        self.conditions = {
            "busy": busy,
            "device": fails == "device",
            "far": fails == "far",
            "bad_row": bad_row,
        }
        self.forget()
        self.table = np.zeros((2, SLOT_BLOCKS, 16), np.uint8)
        for slot, base in ((DEVICE, self.device_base), (FAR, self.far_base)):
            for block in range(self.blocks):  # neighbours in memory in pairs, pairs in any order
                self.set_entry(slot, block, base + (block ^ 6) * self.layout.block_bytes, block)
        rows = rng.normal(size=(2, self.image_bytes // 2)).astype("<f2")
        self.device, self.far = rows.view(np.uint8)
        self.widths = {"table": 16}
        for path, width in enumerate(setup.far_bytes):
            self.widths |= {f"device{path}": setup.device_bytes, f"far{path}": width}

    def forget(self):
        """Tell the conditions, and with them that the table has changed."""
        self.rtl.run({"i_conditions": pack_words(CONDITIONS, **self.conditions, reset=0)}, {})

    def reset_during(self, moves, cycle):
        """Give moves, take no completion, and reset the RTL in that cycle."""
        conditions = pack_words(CONDITIONS, **self.conditions, reset=1)
        inputs = {"i_descriptor": self.words_of(moves), "i_conditions": conditions}
        self.rtl.run(inputs, {}, gaps={"i_conditions": [cycle]})

    def set_entry(self, slot, block, address, generation):
        self.table[slot, block] = np.frombuffer(BlockEntry(address, generation).pack(), np.uint8)

    def write_records(self, *blocks):
        """Quantise what far blocks hold, in the place of it."""
        for block in blocks:
            start = (block ^ 6) * self.layout.block_bytes
            rows = self.far[start : start + self.layout.block_bytes].view("<f2").astype(np.float16)
            records = to_records(self.layout, rows.reshape(self.layout.block_tokens, 2, -1))
            self.far[start : start + records.size] = records.reshape(-1)

    def images(self):
        return {
            name: self.table.reshape(-1) if name == "table" else getattr(self, name[:-1])
            for name in self.widths
        }

    def words_of(self, moves):
        """Descriptors as the RTL takes them."""
        fields = {
            name: np.array([getattr(move, name) for move in moves])
            for name in ("tag", "flags", "first_token", "tokens", "generation", "destination_generation")
        }
        for name in ("source", "destination"):
            slot, block = np.array([getattr(move, name) for move in moves]).T
            fields[name] = {"slot": slot, "block": block}
        return pack_words(self.shapes.descriptor, **fields)

    def run(self, moves, stalls=None, faults=None):
        """Give moves to both; compare completions and every byte of the memories.

        faults: codes by tag where a bus fails, which the model knows nothing of. Returns statistics.
        """
        for name, image in self.images().items():
            width = self.widths[name]
            layout = data.StructLayout({"row": 24, "data": 8 * width})
            beats = image.reshape(-1, width)
            load = pack_words(layout, row=np.arange(len(beats)), data=beats)
            self.rtl.run({f"i_load_{name}": load}, {}, drain_cycles=1)
        result = self.rtl.run(
            {"i_descriptor": self.words_of(moves)},
            {"o_completion": len(moves)},
            stalls=stalls,
            drain_cycles=100,
        )
        before = self.images()
        before = {name: image.copy() for name, image in before.items()}
        model = MigrationModel(
            self.layout, self.table, SLOT_BLOCKS, self.device, self.far, self.device_base, self.far_base
        )
        expected = [model.execute(move) for move in moves]
        for n, move in enumerate(moves):
            if code := (faults or {}).get(move.tag):
                expected[n] = replace(expected[n], code=code, bytes=0)
        given = unpack_words(self.shapes.completion, result.outputs["o_completion"])
        completions = [
            MoveCompletion(
                int(given["tag"][n]),
                MoveCode(int(given["code"][n])),
                int(given["bytes"][n]),
                (int(given["block"]["slot"][n]), int(given["block"]["block"][n])),
            )
            for n in range(len(moves))
        ]
        assert completions == expected
        for side in ("device", "far"):
            image = before[f"{side}0"].copy()
            for name, width in self.widths.items():
                if name.startswith(side):  # what a path has changed
                    now = self.dump(name, width)
                    image = np.where(now != before[name], now, image)
            assert np.array_equal(image, getattr(self, side))
        return result, completions

    def dump(self, name, width):
        rows = np.arange(self.image_bytes // width, dtype=np.uint32)[:, None]
        dumped = self.rtl.run({f"i_dump_{name}": rows}, {f"o_dump_{name}": len(rows)})
        return dumped.outputs[f"o_dump_{name}"].view(np.uint8).reshape(-1)


@pytest.fixture
def world():
    """tiny_pim with one path of eight bytes, compute idle."""
    return World(Setup())


@pytest.fixture
def make_world():
    """`World` with other paths, busy compute, a memory that fails, or another setup."""

    def make(far_bytes=(8,), setup=None, **how):
        return World(Setup(far_bytes=far_bytes) if setup is None else Setup(**setup), **how)

    return make
