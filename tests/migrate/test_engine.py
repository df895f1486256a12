"""Migration engine with its AXI managers on memories of its own, compiled, against the golden twin."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import Response
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import PIM_LAYOUTS, BlockEntry, Move, MoveCode
from nearkv_hdl.stream.credit import CreditBuffer
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.cosim.words import pack_words, unpack_words
from nearkv_sim.golden.migrate_engine import MigrationModel, MoveCompletion, MoveDescriptor

LAYOUT = PIM_LAYOUTS["tiny_pim"]
BLOCKS = 64  # of each memory
DEVICE_BYTES = 8  # of its bus
IMAGE_BYTES = BLOCKS * LAYOUT.block_bytes
SHAPES = MoveShapes(LAYOUT, slot_bits=1, block_bits=7, address_bits=32)
DEVICE, FAR = 0, 1  # sequence slots of the table
TABLE_BYTES = 2 * 128 * 16
DEVICE_BASE, FAR_BASE = 4 * IMAGE_BYTES, 8 * IMAGE_BYTES
MEMORY_LATENCY = 20
PATIENCE = 8
# Compute is busy in so many cycles of each period of 4; which memories fail at BAD_ROW.
CONDITIONS = data.StructLayout({"busy": 3, "device": 1, "far": 1})
BAD_ROW = 5  # of a memory with errors


class AxiMemory(wiring.Component):
    """A memory behind both AXI directions, with a way in and out for the test."""

    def __init__(self, read, write, nbytes):
        self.bus_read, self.bus_write = read, write
        self.width = len(read.rdata)
        self.rows = 8 * nbytes // self.width
        super().__init__(
            {
                "i_load": In(stream.Signature(data.StructLayout({"row": 24, "data": self.width}))),
                "i_dump": In(stream.Signature(24)),
                "o_dump": Out(stream.Signature(self.width)),
                "fails": In(1),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.rows = rows = SyncMemory(self.width, self.rows, parts=self.width // 8)
        lane_bits = (self.width // 8 - 1).bit_length()
        read, write = self.bus_read, self.bus_write

        # Reads: one beat after another of the oldest request; the test's reads go the same way.
        request = data.StructLayout({"row": range(self.rows), "beats": 8})
        m.submodules.requests = requests = fifo.SyncFIFOBuffered(width=request.size, depth=16)
        answer = data.StructLayout({"data": self.width, "last": 1, "dump": 1, "fails": 1})
        m.submodules.answers = answers = CreditBuffer(answer, MEMORY_LATENCY)
        head, asked = data.View(request, requests.r_data), data.View(request, requests.w_data)
        index = Signal(8)
        is_dump, goes, ends = Signal(), Signal(), Signal()
        row = Signal(range(self.rows))
        m.d.comb += [
            read.arready.eq(requests.w_rdy),
            requests.w_en.eq(read.arvalid),
            asked.row.eq(read.araddr >> lane_bits),
            asked.beats.eq(read.arlen),
            is_dump.eq(~requests.r_rdy),
            answers.i_valid.eq(requests.r_rdy | self.i_dump.valid),
            goes.eq(answers.i_valid & answers.i_ready),
            ends.eq(index == head.beats),
            requests.r_en.eq(goes & ends & ~is_dump),
            self.i_dump.ready.eq(answers.i_ready & is_dump),
            row.eq(Mux(is_dump, self.i_dump.payload, head.row + index)),
            rows.read_row.eq(row),
            rows.read_enable.eq(1),
        ]
        with m.If(goes & ~is_dump):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        notes = Cat(ends, is_dump, (row == BAD_ROW) & self.fails & ~is_dump)
        word = Signal(answer)
        noted = Signal(3)
        m.d.sync += noted.eq(notes)
        stage = Cat(rows.read_data, noted)
        for rank in range(MEMORY_LATENCY - 1):
            register = Signal(answer.size, name=f"rank{rank}")
            m.d.sync += register.eq(stage)
            stage = register
        m.d.comb += [
            Value.cast(answers.result).eq(stage),
            Value.cast(word).eq(answers.o.payload),
            read.rvalid.eq(answers.o.valid & ~word.dump),
            read.rdata.eq(word.data),
            read.rlast.eq(word.last),
            read.rresp.eq(Mux(word.fails, Response.SLVERR, Response.OKAY)),
            self.o_dump.valid.eq(answers.o.valid & word.dump),
            self.o_dump.payload.eq(word.data),
            answers.o.ready.eq(Mux(word.dump, self.o_dump.ready, read.rready)),
        ]
        if write is None:
            m.d.comb += [rows.write_data.eq(self.i_load.payload.data), self.i_load.ready.eq(1)]
            m.d.comb += [rows.write_row.eq(self.i_load.payload.row)]
            m.d.comb += rows.write_enable.eq(self.i_load.valid.replicate(self.width // 8))
            return m

        # Writes: bursts queue.
        m.submodules.starts = starts = fifo.SyncFIFOBuffered(width=24, depth=8)
        m.submodules.responses = responses = fifo.SyncFIFOBuffered(width=1, depth=8)
        index, failed = Signal(8), Signal()
        busy, writes, fault = Signal(), Signal(), Signal()
        place = starts.r_data + index
        m.d.comb += [
            write.awready.eq(starts.w_rdy),
            starts.w_en.eq(write.awvalid),
            starts.w_data.eq(write.awaddr[lane_bits:][: (self.rows - 1).bit_length()]),
            busy.eq(starts.r_rdy),
            write.wready.eq(busy & responses.w_rdy),
            writes.eq(write.wvalid & write.wready),
            fault.eq((place == BAD_ROW) & self.fails),
            starts.r_en.eq(writes & write.wlast),
            responses.w_en.eq(writes & write.wlast),
            responses.w_data.eq(failed | fault),
            write.bvalid.eq(responses.r_rdy),
            write.bresp.eq(Mux(responses.r_data, Response.SLVERR, Response.OKAY)),
            responses.r_en.eq(write.bready),
            self.i_load.ready.eq(~busy),
            rows.write_row.eq(Mux(busy, place, self.i_load.payload.row)),
            rows.write_data.eq(Mux(busy, write.wdata, self.i_load.payload.data)),
            rows.write_enable.eq(
                Mux(busy, Mux(writes, write.wstrb, 0), self.i_load.valid.replicate(self.width // 8))
            ),
        ]
        with m.If(writes):
            m.d.sync += [
                index.eq(Mux(write.wlast, 0, index + 1)),
                failed.eq(~write.wlast & (failed | fault)),
            ]
        return m


class EngineBench(wiring.Component):
    """The engine with a table, and a device and a far memory for each path."""

    def __init__(self, device_bytes, far_bytes):
        self.engine = engine = MigrationEngine(SHAPES, device_bytes, far_bytes, patience_cycles=PATIENCE)
        self.memories = {"table": AxiMemory(engine.m_axi_table, None, TABLE_BYTES)}
        for path in range(len(far_bytes)):
            for side in ("device", "far"):
                read, write = (getattr(engine, f"m_axi_{side}_{way}_{path}") for way in ("read", "write"))
                memory = AxiMemory(read, write, IMAGE_BYTES)
                self.memories[f"{side}{path}"] = memory
        members = {}
        for name, memory in self.memories.items():
            for port in ("i_load", "i_dump", "o_dump"):
                members[f"{port}_{name}"] = memory.signature.members[port]
        super().__init__(
            {
                "i_conditions": In(stream.Signature(CONDITIONS)),
                "i_descriptor": In(stream.Signature(SHAPES.descriptor)),
                "o_completion": Out(stream.Signature(SHAPES.completion)),
                **members,
                "o_far_write": Out(1),
                "o_far_burst": Out(1),
                "o_device_write": Out(1),
                "o_wide_write": Out(1),
                "o_table_read": Out(1),
                "o_invalid": Out(1),
                "o_jobs": Out(16),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        m.submodules.engine = engine = self.engine
        wiring.connect(m, wiring.flipped(self.i_descriptor), engine.i_descriptor)
        wiring.connect(m, engine.o_completion, wiring.flipped(self.o_completion))
        for name, memory in self.memories.items():
            m.submodules[name] = memory
            for port in ("i_load", "i_dump"):
                wiring.connect(m, wiring.flipped(getattr(self, f"{port}_{name}")), getattr(memory, port))
            wiring.connect(m, memory.o_dump, wiring.flipped(getattr(self, f"o_dump_{name}")))
        conditions, phase = Signal(CONDITIONS), Signal(2)
        m.d.comb += self.i_conditions.ready.eq(1)
        m.d.sync += phase.eq(phase + 1)
        with m.If(self.i_conditions.valid):
            m.d.sync += conditions.eq(self.i_conditions.payload)
        for name, memory in self.memories.items():
            if name != "table":
                m.d.comb += memory.fails.eq(getattr(conditions, name[:-1]))
        far, device, last = engine.m_axi_far_write_0, engine.m_axi_device_write_0, len(engine._paths) - 1
        wide = getattr(engine, f"m_axi_far_write_{last}")
        m.d.comb += [
            engine.table_base.eq(0),
            engine.table_window.eq(TABLE_BYTES),
            engine.i_forget.eq(self.i_conditions.valid),
            engine.device_base.eq(DEVICE_BASE),
            engine.device_window.eq(IMAGE_BYTES),
            engine.far_base.eq(FAR_BASE),
            engine.far_window.eq(IMAGE_BYTES),
            engine.i_compute_busy.eq(phase < conditions.busy),
            self.o_far_write.eq(far.wvalid & far.wready),
            self.o_far_burst.eq(far.awvalid & far.awready),
            self.o_device_write.eq(device.wvalid & device.wready),
            self.o_wide_write.eq(wide.wvalid & wide.wready),
            self.o_table_read.eq(engine.m_axi_table.arvalid & engine.m_axi_table.arready),
            self.o_invalid.eq(engine.o_invalid),
            self.o_jobs.eq(engine.o_jobs),
        ]
        return m


@cache
def compiled(far_bytes):
    bench = EngineBench(DEVICE_BYTES, far_bytes)
    return CompiledComponent(bench, name=f"engine-{'-'.join(map(str, far_bytes))}", flatten=False)


class World:
    """Memory images, the RTL that holds them, and the golden model that changes them."""

    def __init__(self, far_bytes=(8,), seed=1, busy=0, fails=None):
        rng = np.random.default_rng(seed)
        self.rtl = compiled(far_bytes)
        self.rtl.reset()
        self.conditions = pack_words(CONDITIONS, busy=busy, device=fails == "device", far=fails == "far")
        self.forget()
        self.table = np.zeros((2, 128, 16), np.uint8)
        for slot, base in ((DEVICE, DEVICE_BASE), (FAR, FAR_BASE)):
            for block in range(BLOCKS):  # neighbours in memory in pairs, pairs in any order
                self.set_entry(slot, block, base + (block ^ 6) * LAYOUT.block_bytes, block)
        rows = rng.normal(size=(2, IMAGE_BYTES // 2)).astype("<f2")
        self.device, self.far = rows.view(np.uint8)
        self.widths = {"table": 16}
        for path, width in enumerate(far_bytes):
            self.widths |= {f"device{path}": DEVICE_BYTES, f"far{path}": width}

    def forget(self):
        """Tell the conditions, and with them that the table has changed."""
        self.rtl.run({"i_conditions": self.conditions}, {})

    def set_entry(self, slot, block, address, generation):
        self.table[slot, block] = np.frombuffer(BlockEntry(address, generation).pack(), np.uint8)

    def images(self):
        return {
            name: self.table.reshape(-1) if name == "table" else getattr(self, name[:-1])
            for name in self.widths
        }

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
        fields = {
            name: np.array([getattr(move, name) for move in moves])
            for name in ("tag", "flags", "first_token", "tokens", "generation", "destination_generation")
        }
        for name in ("source", "destination"):
            slot, block = np.array([getattr(move, name) for move in moves]).T
            fields[name] = {"slot": slot, "block": block}
        result = self.rtl.run(
            {"i_descriptor": pack_words(SHAPES.descriptor, **fields)},
            {"o_completion": len(moves)},
            stalls=stalls,
            drain_cycles=100,
        )
        before = self.images()
        before = {name: image.copy() for name, image in before.items()}
        model = MigrationModel(LAYOUT, self.table, 128, self.device, self.far, DEVICE_BASE, FAR_BASE)
        expected = [model.execute(move) for move in moves]
        for n, move in enumerate(moves):
            if code := (faults or {}).get(move.tag):
                expected[n] = replace(expected[n], code=code, bytes=0)
        given = unpack_words(SHAPES.completion, result.outputs["o_completion"])
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
        rows = np.arange(IMAGE_BYTES // width, dtype=np.uint32)[:, None]
        dumped = self.rtl.run({f"i_dump_{name}": rows}, {f"o_dump_{name}": len(rows)})
        return dumped.outputs[f"o_dump_{name}"].view(np.uint8).reshape(-1)


def down(tag, block, to, flags=Move.RELAYOUT, tokens=16, first=0):
    return MoveDescriptor(tag, (DEVICE, block), (FAR, to), tokens, first, flags, block, to)


def up(tag, block, to, flags=Move.RELAYOUT, tokens=16, first=0):
    return MoveDescriptor(tag, (FAR, block), (DEVICE, to), tokens, first, flags | Move.UP, block, to)


@pytest.fixture
def world():
    return World()


KINDS = [
    Move.COPY,
    Move.RELAYOUT,
    Move.UP,
    Move.UP | Move.RELAYOUT,
    Move.QUANTISE,
    Move.QUANTISE | Move.RELAYOUT,
]


def test_one_move_of_every_kind(world):
    moves = [(up if Move.UP in kind else down)(n, n, 20 + n, kind) for n, kind in enumerate(KINDS)]
    world.run(moves)
    # What was quantised comes back, in both layouts.
    world.run([up(1, 24, 30, Move.EXPAND), up(2, 25, 31, Move.EXPAND | Move.RELAYOUT)])


def test_random_moves_under_pauses():
    """Any kinds, any tiles, sources and destinations that do not meet; other widths with busy compute."""
    for seed, world in enumerate([World(), World(busy=2), World((4, 8), busy=1)]):
        rng = np.random.default_rng(seed)
        moves = []
        targets = {Move.UP: rng.permutation(32) + 32, Move.COPY: rng.permutation(32) + 32}
        for tag in range(40):
            kind = KINDS[rng.integers(len(KINDS))]
            first = 4 * int(rng.integers(4))
            tokens = 4 * int(rng.integers(1, 5 - first // 4))
            to = int(targets[kind & Move.UP][tag % 32])
            make = up if Move.UP in kind else down
            if tag < 32:
                moves.append(make(tag, int(rng.integers(32)), to, kind, tokens, first))
        world.run(moves, Stalls(seed, 0.3, 0.3))


def test_refusals_touch_nothing(world):
    world.set_entry(DEVICE, 3, DEVICE_BASE - LAYOUT.block_bytes, 3)
    world.set_entry(FAR, 4, FAR_BASE + IMAGE_BYTES, 4)
    world.set_entry(FAR, 5, FAR_BASE + 64, 5)
    world.table[FAR, 6] = 0
    good = down(0, 10, 40)
    moves = [
        good,
        replace(good, tag=1, tokens=0),
        replace(good, tag=2, tokens=6),
        replace(good, tag=3, first_token=2, tokens=4),
        replace(good, tag=4, first_token=4),
        up(5, 1, 2, Move.QUANTISE),
        down(6, 1, 2, Move.EXPAND),
        down(7, 3, 2),
        down(8, 1, 4),
        down(9, 1, 5),
        down(10, 1, 6),
        up(11, 6, 1),
        replace(good, tag=12, generation=9),
        replace(good, tag=13, destination_generation=9),
        replace(good, tag=14, source=(DEVICE, 127)),
        down(15, 11, 41),
    ]
    _, completions = world.run(moves)
    codes = [
        MoveCode.DONE,
        *[MoveCode.REFUSED] * 6,
        *[MoveCode.OUTSIDE] * 3,
        MoveCode.ABSENT,
        MoveCode.ABSENT,
    ]
    codes += [MoveCode.STALE, MoveCode.STALE, MoveCode.ABSENT, MoveCode.DONE]
    assert [completion.code for completion in completions] == codes


def test_difference_only_moves_copy_what_has_changed(world):
    for block in range(0, 16, 2):
        world.set_entry(FAR, 32 + block, FAR_BASE + (32 + block) * LAYOUT.block_bytes, block)
    result, completions = world.run([down(n, n, 32 + n, Move.RELAYOUT | Move.DIFFERENCE) for n in range(16)])
    codes = [completion.code for completion in completions]
    assert codes == [MoveCode.SKIPPED, MoveCode.DONE] * 8
    assert result.flags["o_far_write"].high_cycles == 8 * LAYOUT.block_bytes // 8


def test_small_moves_become_one_burst(world):
    """Tiles of a block, asked for one by one, after a move that keeps the path busy."""
    busy = [down(0, 20, 50), down(1, 22, 52), down(2, 23, 54), down(3, 21, 56)]
    small = [down(10 + n, 1, 40, tokens=4, first=4 * n) for n in range(4)]
    result, _ = world.run([*busy, *small])
    assert result.signals["o_jobs"] == len(busy) + 1
    assert result.flags["o_far_burst"].high_cycles == (len(busy) + 1) * LAYOUT.block_bytes // (16 * 8)


def test_neighbouring_blocks_of_rows_become_one_job(world):
    """Without re-layout blocks are contiguous: physical neighbours join, whatever their logical order."""
    busy = [down(n, 20 + n, 50 + n) for n in range(4)]
    # block ^ 6 is where a block lies: 38, 39, 36, 37 are at 32 to 35, and so are their copies one further.
    small = [down(10 + n, block, block, Move.COPY) for n, block in enumerate((38, 39, 36, 37))]
    result, _ = world.run([*busy, *small])
    assert result.signals["o_jobs"] < len(busy) + len(small)


@pytest.mark.parametrize("make", [down, up])
@pytest.mark.parametrize("flags", [Move.RELAYOUT, Move.COPY])
def test_a_long_stream_fills_the_narrower_bus(world, make, flags):
    """64 KiB in 64 descriptors, table reads and all: from the first to the last beat on the narrower bus."""
    result, _ = world.run([make(n, n, n, flags) for n in range(BLOCKS)])
    port = result.flags["o_far_write" if make is down else "o_device_write"]
    assert port.high_cycles == IMAGE_BYTES // 8 == port.last_high_cycle - port.first_high_cycle + 1
    assert port.high_cycles >= 0.9 * result.cycles


def test_a_remembered_block_is_not_read_again(world):
    result, _ = world.run([down(n, 1, 40, tokens=4, first=4 * n) for n in range(4)])
    assert result.flags["o_table_read"].high_cycles == 2


def test_a_remembered_block_is_not_taken_for_a_newer_one(world):
    world.run([down(0, 1, 40)])
    world.set_entry(DEVICE, 1, DEVICE_BASE + 50 * LAYOUT.block_bytes, 99)
    world.run([replace(down(1, 1, 41), generation=99)])
    world.set_entry(DEVICE, 1, DEVICE_BASE + 51 * LAYOUT.block_bytes, 100)
    world.forget()
    _, completions = world.run([replace(down(2, 1, 42), generation=99)])
    assert completions[0].code is MoveCode.STALE


def test_compute_comes_first_but_not_for_ever():
    """Busy without end: a beat every patience + 1 cycles."""
    world = World(busy=4)
    result, _ = world.run([down(0, 1, 40)])
    beats = LAYOUT.block_bytes // 8
    assert beats * (PATIENCE + 1) <= result.cycles <= beats * (PATIENCE + 1) + 300


def test_the_wider_path_is_taken_first():
    world = World((4, 8))
    result, _ = world.run([down(0, 1, 40)])
    assert result.flags["o_far_write"].high_cycles == 0
    assert result.flags["o_wide_write"].high_cycles == LAYOUT.block_bytes // 8
    world = World((4, 8))
    result, _ = world.run([down(n, n, 32 + n) for n in range(16)])
    assert 0 < result.flags["o_far_write"].high_cycles * 4 < result.flags["o_wide_write"].high_cycles * 8


@pytest.mark.parametrize(
    ("fails", "make", "code"), [("device", down, MoveCode.READ_ERROR), ("far", down, MoveCode.WRITE_ERROR)]
)
def test_errors_of_the_bus_are_reported(fails, make, code):
    """A row of the first block answers with SLVERR; the move says so, the next one is whole."""
    world = World(fails=fails)
    world.run([make(0, 6, 6), make(1, 1, 40)], faults={0: code})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MigrationEngine(SHAPES, 8, ()), r"far_bytes has 0 widths; allowed: 1 to 4"),
        (lambda: MigrationEngine(SHAPES, 8, (8,), queue=1), r"queue is 1; allowed: from 2"),
        (
            lambda: MigrationEngine(SHAPES, 8, (8,), patience_cycles=0),
            r"patience_cycles is 0; allowed: from 1",
        ),
        (lambda: MigrationEngine(SHAPES, 8, (32,)), r"beat_bytes is 32 for tiny_pim"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
