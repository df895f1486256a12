"""One path between a PIM device and a far memory, with everything that happens to data on the way."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read, axi_write, check_bus_bytes
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.migrate.idle_gate import IdleGate
from nearkv_hdl.migrate.job_statuses import collect_statuses
from nearkv_hdl.migrate.move_planner import has
from nearkv_hdl.migrate.moves import CODE_BITS, FLAG_BITS, MoveShapes
from nearkv_hdl.migrate.relayout import Relayout
from nearkv_hdl.migrate.route import feed, join, steer, through_queue
from nearkv_hdl.migrate.row_expander import RowExpander
from nearkv_hdl.migrate.row_quantiser import RowQuantiser
from nearkv_hdl.migrate.tile_commands import Place, TileCommands, command_count
from nearkv_hdl.spec.migration import Move, MoveCode, Order, PimLayout
from nearkv_hdl.stream.width import Narrow, Widen

_JOBS = 2  # under way at once: one follows the other
_COMMAND_CYCLES = 16  # of a manager's command besides the memory's latency and its beats


def transfer_sizes(
    layout: PimLayout, bus_bytes: int, burst_beats: int, memory_latency_cycles: int
) -> tuple[int, int]:
    """Bursts, of rows at least, and beats a manager has under way so that this latency costs none.

    Raises ValueError for a bus that is no AXI manager's.
    """
    check_bus_bytes(bus_bytes)
    row_beats = max(1, min(burst_beats, layout.row_bytes // bus_bytes))
    bursts = 1 + -(-(memory_latency_cycles + _COMMAND_CYCLES) // row_beats)
    return bursts, memory_latency_cycles + burst_beats + 8  # as AxiReader has it


class MigrationPath(wiring.Component):
    """Executes jobs: reads one side, changes layout and format, writes the other.

    Formula: up: far memory, [RowExpander], IdleGate, Relayout, device. Down: device, IdleGate, Relayout,
    [RowQuantiser], far memory. Inside, beats have the wider side's width. Unless bytes are copied as they
    lie, a tile's keys pass before its values, and rows are read and written one by one.
    Timing: a beat of the narrower side per cycle, once half a tile is complete; jobs of one kind (flags)
    follow without a gap, a job of another kind once the path is empty. `latency` from a job to the first
    read command.
    Stalls: of any channel of the buses; compute, for `patience_cycles` a beat.
    Numerics: of RowQuantiser and RowExpander; otherwise bytes are unchanged.
    Cuts: as its children.
    Reset: everything; only together with the buses.

    Args:
        shapes: of the jobs, and the layout.
        device_bytes, far_bytes: widths of both buses.
        patience_cycles: see IdleGate.
        burst_beats: see BurstSplitter.
        memory_latency_cycles: from an address to its data or, after the last beat, response, that costs no
            beat, from 1.

    Members:
        i_job: jobs inside the windows.
        o_result: a MoveCode per job, in order: DONE, READ_ERROR or WRITE_ERROR.
        i_compute_busy: see IdleGate.
        device_base, device_window, far_base, far_window: windows of both sides.
        o_idle: no job is under way.
        o_invalid: since reset, a number that cannot be quantised or a scale that cannot be expanded.
        m_axi_device_read, m_axi_device_write, m_axi_far_read, m_axi_far_write: buses.

    Raises ValueError for `memory_latency_cycles` below 1 and widths that a child refuses.

    """

    def __init__(
        self,
        shapes: MoveShapes,
        device_bytes: int,
        far_bytes: int,
        patience_cycles: int = 64,
        burst_beats: int = 16,
        memory_latency_cycles: int = 100,
    ) -> None:
        if memory_latency_cycles < 1:
            raise ValueError(f"memory_latency_cycles is {memory_latency_cycles}; allowed: from 1")
        layout = shapes.layout
        self.shapes = shapes
        self.beat_bytes = max(device_bytes, far_bytes, layout.column_bytes)
        self.device_bytes, self.far_bytes = device_bytes, far_bytes
        address_bits = shapes.address_bits
        self._readers, self._writers = [], []
        for width in (device_bytes, far_bytes):
            bursts, beats = transfer_sizes(layout, width, burst_beats, memory_latency_cycles)
            self._readers.append(AxiReader(width, burst_beats, bursts, beats, address_bits))
            self._writers.append(AxiWriter(width, burst_beats, bursts, address_bits))
        self._commands = [TileCommands(shapes) for _ in range(2)]
        self._expander = RowExpander(layout, self.beat_bytes)
        self._quantiser = RowQuantiser(layout, self.beat_bytes)
        self._relayout = Relayout(layout, self.beat_bytes, self.beat_bytes, shapes.tiles_bits)
        self._gate = IdleGate(8 * self.beat_bytes, patience_cycles)
        address = In(address_bits)
        super().__init__(
            {
                "i_job": In(stream.Signature(shapes.job)),
                "o_result": Out(stream.Signature(CODE_BITS)),
                "i_compute_busy": In(1),
                "device_base": address,
                "device_window": address,
                "far_base": address,
                "far_window": address,
                "o_idle": Out(1),
                "o_invalid": Out(1),
                "m_axi_device_read": Out(axi_read(address_bits, device_bytes)),
                "m_axi_device_write": Out(axi_write(address_bits, device_bytes)),
                "m_axi_far_read": Out(axi_read(address_bits, far_bytes)),
                "m_axi_far_write": Out(axi_write(address_bits, far_bytes)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a job to the first read address."""
        return 1 + self._commands[0].latency + self._readers[0].latency

    @property
    def interval(self) -> int:
        """Cycles between two beats of the narrower side."""
        return 1

    def elaborate(self, platform):
        m = Module()
        shapes = self.shapes
        for name, unit in (
            ("expander", self._expander),
            ("quantiser", self._quantiser),
            ("relayout", self._relayout),
            ("gate", self._gate),
        ):
            m.submodules[name] = unit
        expander, quantiser = self._expander, self._quantiser
        relayout, gate = self._relayout, self._gate
        m.d.comb += [
            gate.i_compute_busy.eq(self.i_compute_busy),
            self.o_invalid.eq(expander.o_invalid | quantiser.o_invalid),
        ]

        # A job: commands of both sides, orders of its tiles, the statuses it is owed.
        job = Signal(shapes.job, reset_less=True)
        job_valid = Signal()
        flags = Signal(FLAG_BITS, reset_less=True)  # of all jobs under way
        up = has(flags, Move.UP)
        quantise, expand = has(flags, Move.QUANTISE), has(flags, Move.EXPAND)
        reads_owed, read_fails = collect_statuses(m, "reads", self._readers, up, _JOBS)
        writes_owed, write_fails = collect_statuses(m, "writes", self._writers, ~up, _JOBS)
        under_way = Signal(range(_JOBS + 1))
        starts, done = Signal(), Signal()
        m.d.sync += under_way.eq(under_way + starts - done)
        m.d.comb += [self.i_job.ready.eq(~job_valid), self.o_idle.eq(~job_valid & (under_way == 0))]
        with m.If(~job_valid):
            m.d.sync += [job.eq(self.i_job.payload), job_valid.eq(self.i_job.valid)]
        read_commands, write_commands = self._commands
        m.submodules.read_commands = read_commands
        m.submodules.write_commands = write_commands
        job_up, job_relayout = has(job.flags, Move.UP), has(job.flags, Move.RELAYOUT)
        same = job.flags == flags
        # Commands of rows are as slow as their beats. Those of reads are ahead; writes must not stop a job.
        write_run = stream.Signature(write_commands.i.payload.shape()).create()
        through_queue(m, "write_runs", write_run, write_commands.i, _JOBS)
        # What follows takes a job in the same cycle: all of it must be ready.
        takers = (read_commands.i, write_run, relayout.i_job, reads_owed, writes_owed)
        all_ready = Cat(taker.ready for taker in takers).all() & (under_way != _JOBS)
        m.d.comb += starts.eq(job_valid & all_ready & ((under_way == 0) | same))
        m.d.comb += [taker.valid.eq(starts) for taker in takers]
        lossy = has(job.flags, Move.QUANTISE) | has(job.flags, Move.EXPAND)
        row_major = Mux(job_relayout | lossy, Place.ROWS, Place.BYTES)
        read, write = read_commands.i.payload, write_run.payload
        for run, in_pim, quantised in ((read, ~job_up, Move.EXPAND), (write, job_up, Move.QUANTISE)):
            place = Mux(has(job.flags, quantised), Place.RECORDS, row_major)
            m.d.comb += [
                run.place.eq(Mux(job_relayout & in_pim, Place.PIM, place)),
                run.tiles.eq(job.tiles),
            ]
        m.d.comb += [
            read.address.eq(job.source),
            write.address.eq(job.destination),
            relayout.i_job.payload.tiles.eq(job.tiles),
            relayout.i_job.payload.source.eq(Mux(read.place == Place.PIM, Order.PIM, Order.ROWS)),
            relayout.i_job.payload.destination.eq(Mux(write.place == Place.PIM, Order.PIM, Order.ROWS)),
            reads_owed.payload.eq(command_count(shapes, read)),
            writes_owed.payload.eq(command_count(shapes, write)),
        ]
        with m.If(starts):
            m.d.sync += [job_valid.eq(0), flags.eq(job.flags)]

        # Data: reader of one side, writer of the other.
        widened, narrowed = [], []
        for side, width in enumerate((self.device_bytes, self.far_bytes)):
            reader, writer = self._readers[side], self._writers[side]
            widen, narrow = Widen(width, self.beat_bytes), Narrow(self.beat_bytes, width)
            m.submodules[f"reader{side}"], m.submodules[f"writer{side}"] = reader, writer
            m.submodules[f"widen{side}"], m.submodules[f"narrow{side}"] = widen, narrow
            name = ("device", "far")[side]
            base, size = getattr(self, f"{name}_base"), getattr(self, f"{name}_window")
            for unit, direction in ((reader, "read"), (writer, "write")):
                m.d.comb += [unit.window_base.eq(base), unit.window_bytes.eq(size)]
                wiring.connect(m, unit.m_axi, wiring.flipped(getattr(self, f"m_axi_{name}_{direction}")))
            m.d.comb += [
                widen.i.valid.eq(reader.o_data.valid),
                widen.i.payload.eq(reader.o_data.payload.data),
                reader.o_data.ready.eq(widen.i.ready),
            ]
            wiring.connect(m, narrow.o, writer.i_data)
            widened.append(widen.o)
            narrowed.append(narrow.i)
        steer(m, read_commands.o, [reader.i_command for reader in self._readers], up)
        steer(m, write_commands.o, [writer.i_command for writer in self._writers], ~up)
        down_beats, up_beats = widened
        join(m, [down_beats, up_beats, expander.o], gate.i, Mux(up, Mux(expand, 2, 1), 0))
        feed(m, up_beats, expander.i, expand)
        wiring.connect(m, gate.o, relayout.i)
        feed(m, relayout.o, quantiser.i, quantise)
        feed(m, relayout.o, narrowed[0], up)
        join(m, [relayout.o, quantiser.o], narrowed[1], quantise, enable=~up)

        # Results: whether the oldest job's commands failed.
        error_code = Mux(read_fails.payload, MoveCode.READ_ERROR, MoveCode.WRITE_ERROR)
        m.d.comb += [
            self.o_result.valid.eq(read_fails.valid & write_fails.valid),
            self.o_result.payload.eq(
                Mux(read_fails.payload | write_fails.payload, error_code, MoveCode.DONE)
            ),
            done.eq(self.o_result.valid & self.o_result.ready),
            read_fails.ready.eq(done),
            write_fails.ready.eq(done),
        ]
        return m
