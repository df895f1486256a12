"""The migration engine: descriptors in, completions out, data moved meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.migrate.block_translator import BlockTranslator
from nearkv_hdl.migrate.migration_path import MigrationPath
from nearkv_hdl.migrate.move_batcher import MoveBatcher
from nearkv_hdl.migrate.move_planner import MovePlanner
from nearkv_hdl.migrate.moves import CODE_BITS, MoveShapes
from nearkv_hdl.migrate.route import through_queue
from nearkv_hdl.spec.migration import BLOCK_ENTRY_BYTES, MoveCode

_MAX_PATHS = 4
_WINDOWS = ("device_base", "device_window", "far_base", "far_window")
_BUSES = ("m_axi_device_read", "m_axi_device_write", "m_axi_far_read", "m_axi_far_write")


class MigrationEngine(wiring.Component):
    """Moves tiles between a PIM device and a far memory, by logical blocks.

    Formula: `nearkv_sim.golden.migrate_engine`. A queue of descriptors; MovePlanner with BlockTranslator;
    MoveBatcher, which merges while no path wants a job; then the widest path that is idle, or failing that
    the widest that has room behind its job. A completion per descriptor, in their order. Moves that overlap
    another one in the queue read or write at times of their own: the host waits for the first completion.
    Only on a single path are writes to one place made in the order of their descriptors.
    The table is only read: the host raises the generation in it once a move is complete.
    Timing: as its children; translation and moving run side by side.
    Stalls: while no completion is taken, 3 · `queue` + 3 moves are accepted.
    Numerics: of RowQuantiser and RowExpander.
    Cuts: every path of `i_descriptor` and `o_completion`.
    Reset: everything; only together with the buses.

    Args:
        shapes: layout, table, addresses.
        device_bytes: width of a path's bus to the device.
        far_bytes: width of each path's bus to the far memory, 1 to 4 of them.
        queue: descriptors that wait, and completions, from 2.
        patience_cycles: see IdleGate.
        burst_beats: see BurstSplitter.
        memory_latency_cycles: see MigrationPath.

    Members:
        i_descriptor: moves.
        o_completion: how they ended.
        i_compute_busy: see IdleGate.
        i_forget: see BlockTranslator.
        table_base, table_window: of the block table.
        device_base, device_window, far_base, far_window: what moves may touch on either side.
        o_invalid: see MigrationPath.
        o_jobs: jobs given to paths since reset, modulo 2^16.
        m_axi_table: bus of the table.
        m_axi_device_read_0 …: buses of every path, in the order of `far_bytes`.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self,
        shapes: MoveShapes,
        device_bytes: int,
        far_bytes: Sequence[int],
        queue: int = 16,
        patience_cycles: int = 64,
        burst_beats: int = 16,
        memory_latency_cycles: int = 100,
    ) -> None:
        if not 1 <= len(far_bytes) <= _MAX_PATHS:
            raise ValueError(f"far_bytes has {len(far_bytes)} widths; allowed: 1 to {_MAX_PATHS}")
        if queue < 2:
            raise ValueError(f"queue is {queue}; allowed: from 2")
        self.shapes = shapes
        self.queue = queue
        self._paths = [
            MigrationPath(shapes, device_bytes, width, patience_cycles, burst_beats, memory_latency_cycles)
            for width in far_bytes
        ]
        self._by_width = sorted(range(len(far_bytes)), key=lambda path: -far_bytes[path])
        self._planner = MovePlanner(shapes)
        self._translator = BlockTranslator(shapes)
        self._batcher = MoveBatcher(shapes)
        self._table_reader = AxiReader(BLOCK_ENTRY_BYTES, 1, 2, 2, shapes.address_bits)
        address = In(shapes.address_bits)
        members = {
            "i_descriptor": In(stream.Signature(shapes.descriptor)),
            "o_completion": Out(stream.Signature(shapes.completion)),
            "i_compute_busy": In(1),
            "i_forget": In(1),
            "table_base": address,
            "table_window": address,
            **dict.fromkeys(_WINDOWS, address),
            "o_invalid": Out(1),
            "o_jobs": Out(16),
            "m_axi_table": Out(axi_read(shapes.address_bits, BLOCK_ENTRY_BYTES)),
        }
        for index, path in enumerate(self._paths):
            members |= {f"{bus}_{index}": path.signature.members[bus] for bus in _BUSES}
        super().__init__(members)

    @property
    def latency(self) -> int:
        """Cycles from a descriptor to its first read of the block table."""
        return 2 + 2 + self._translator.latency + self._table_reader.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats of the narrower side."""
        return 1

    def elaborate(self, platform):
        m = Module()
        shapes = self.shapes
        m.submodules.planner = planner = self._planner
        m.submodules.translator = translator = self._translator
        m.submodules.batcher = batcher = self._batcher
        m.submodules.table_reader = table = self._table_reader
        paths = self._paths
        for index, path in enumerate(paths):
            m.submodules[f"path{index}"] = path

        # Descriptors to plans to jobs.
        through_queue(m, "descriptors", self.i_descriptor, planner.i, self.queue)
        wiring.connect(m, planner.o_request, translator.i)
        wiring.connect(m, translator.o, planner.i_translation)
        wiring.connect(m, translator.o_command, table.i_command)
        wiring.connect(m, table.o_data, translator.i_data)
        wiring.connect(m, table.o_status, translator.i_status)
        wiring.connect(m, table.m_axi, wiring.flipped(self.m_axi_table))
        wiring.connect(m, planner.o, batcher.i)
        m.d.comb += [
            translator.table_base.eq(self.table_base),
            translator.i_forget.eq(self.i_forget),
            table.window_base.eq(self.table_base),
            table.window_bytes.eq(self.table_window),
            planner.device_base.eq(self.device_base),
            planner.device_bytes.eq(self.device_window),
            planner.far_base.eq(self.far_base),
            planner.far_bytes.eq(self.far_window),
            batcher.i_hungry.eq(Cat(path.i_job.ready for path in paths).any()),
            self.o_invalid.eq(Cat(path.o_invalid for path in paths).any()),
        ]

        # Jobs to paths, the widest idle one first; which path has which job is kept.
        index_bits = max(1, (len(paths) - 1).bit_length())
        m.submodules.order = order = fifo.SyncFIFOBuffered(width=index_bits, depth=4 * len(paths))
        choice, found = Signal(index_bits), Signal()
        for wishes in ([path.i_job.ready for path in paths], [path.o_idle for path in paths]):
            for index in reversed(self._by_width):
                with m.If(wishes[index]):
                    m.d.comb += [choice.eq(index), found.eq(1)]
        given = Signal()
        m.d.comb += [
            batcher.o_job.ready.eq(found & order.w_rdy),
            given.eq(batcher.o_job.valid & batcher.o_job.ready),
            order.w_en.eq(given),
            order.w_data.eq(choice),
        ]
        m.d.sync += self.o_jobs.eq(self.o_jobs + given)
        for index, path in enumerate(paths):
            m.d.comb += [
                path.i_job.valid.eq(given & (choice == index)),
                path.i_job.payload.eq(batcher.o_job.payload),
                path.i_compute_busy.eq(self.i_compute_busy),
                *(getattr(path, name).eq(getattr(self, name)) for name in _WINDOWS),
            ]
            for bus in _BUSES:
                wiring.connect(m, getattr(path, bus), wiring.flipped(getattr(self, f"{bus}_{index}")))

        # Completions: a merged move ends like its job.
        ledger = stream.Signature(shapes.entry).create()
        through_queue(m, "ledger", batcher.o_entry, ledger, self.queue)
        entry = ledger.payload
        loaded, code = Signal(), Signal(CODE_BITS, reset_less=True)
        result_valid, result_code = Signal(), Signal(CODE_BITS)
        loads = Signal()
        for index, path in enumerate(paths):
            with m.If(order.r_data == index):
                m.d.comb += [
                    result_valid.eq(order.r_rdy & path.o_result.valid),
                    result_code.eq(path.o_result.payload),
                    path.o_result.ready.eq(loads),
                ]
        waits = entry.moves & entry.opens & ~loaded
        m.submodules.completions = completions = fifo.SyncFIFOBuffered(
            width=shapes.completion.size, depth=self.queue
        )
        completion = data.View(shapes.completion, completions.w_data)
        m.d.comb += [
            loads.eq(ledger.valid & waits & result_valid),
            order.r_en.eq(loads),
            completions.w_en.eq(ledger.valid & ~waits),
            ledger.ready.eq(completions.w_rdy & ~waits),
            completion.tag.eq(entry.tag),
            completion.code.eq(Mux(entry.moves, code, entry.code)),
            completion.bytes.eq(Mux(entry.moves & (code == MoveCode.DONE), entry.bytes, 0)),
            Value.cast(completion.block).eq(Value.cast(entry.block)),
            self.o_completion.valid.eq(completions.r_rdy),
            Value.cast(self.o_completion.payload).eq(completions.r_data),
            completions.r_en.eq(self.o_completion.ready),
        ]
        with m.If(loads):
            m.d.sync += [loaded.eq(1), code.eq(result_code)]
        with m.Elif(ledger.valid & ledger.ready):
            m.d.sync += loaded.eq(0)
        return m
