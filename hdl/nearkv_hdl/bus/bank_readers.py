"""One AXI reader made of several, each for its own banks of memory."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi_reader import read_beat_layout
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.stream.credit import BUFFER_LATENCY


class BankReaders(wiring.Component):
    """Sends each command to the reader of the bank it begins in; beats and statuses come back in their order.

    Formula: reader (address // bank_bytes) mod readers gets the command, unchanged. A command that goes on
    into the next bank stays with its reader. Beats and status of a command follow those of the one before,
    whichever reader has them first. What differs from one AxiReader: a status waits until the beats of
    earlier commands have been taken.
    Errors: those of the readers, at their command's place. What a reader must do, and AxiReader does: the
    status of a refused command comes before any beat of a later one.
    Timing: latency 0 from command to reader and from reader to `o_data` and `o_status`, but for what must
    wait for its turn; interval 1, also where readers change. A command that its reader does not take, and
    `commands` commands whose beats and statuses have not both been taken, stop those behind.
    Numerics: none.
    Cuts: none. `i_command.ready` follows the readers', theirs follow `o_data.ready` and `o_status.ready`.
    Reset: the order of what is under way; only together with the readers.

    Args:
        readers: a power of two from 2.
        bank_bytes: a power of two from bus_bytes, up to the address space divided by the readers.
        bus_bytes: bytes of a beat.
        commands: commands that may be under way, from 2.
        address_bits, length_bits: see WindowCheck.

    Members:
        i_command, o_data, o_status: as of AxiReader. Windows are the readers'.
        command{i}, data{i}, status{i}: reader i.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self,
        readers: int,
        bank_bytes: int,
        bus_bytes: int,
        commands: int = 32,
        address_bits: int = 64,
        length_bits: int = 32,
    ) -> None:
        if not (is_power_of_two(readers) and readers >= 2):
            raise ValueError(f"readers is {readers}; allowed: a power of two from 2")
        most = (1 << address_bits) // readers
        if not (is_power_of_two(bank_bytes) and bus_bytes <= bank_bytes <= most):
            raise ValueError(
                f"bank_bytes is {bank_bytes}; allowed: a power of two from {bus_bytes} to {most}"
            )
        if commands < 2:
            raise ValueError(f"commands is {commands}; allowed: from 2")
        self.readers = readers
        self.bank_bytes = bank_bytes
        self.commands = commands
        command = stream.Signature(command_layout(address_bits, length_bits))
        beats = stream.Signature(read_beat_layout(bus_bytes))
        status = stream.Signature(status_layout(address_bits))
        members = {"i_command": In(command), "o_data": Out(beats), "o_status": Out(status)}
        for i in range(readers):
            members |= {f"command{i}": Out(command), f"data{i}": In(beats), f"status{i}": In(status)}
        super().__init__(members)

    @property
    def latency(self) -> int:
        """Cycles from a command to its reader, and from a beat or status whose turn it is to the output."""
        return 0

    @property
    def order_latency(self) -> int:
        """Cycles after a command before its beats and status can be taken; an AxiReader needs more."""
        return BUFFER_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def attach(self, m: Module, index: int, command, beats, status) -> None:
        """Connect reader `index`: what AxiReader calls i_command, o_data and o_status."""
        wiring.connect(m, getattr(self, f"command{index}"), command)
        wiring.connect(m, beats, getattr(self, f"data{index}"))
        wiring.connect(m, status, getattr(self, f"status{index}"))

    def elaborate(self, platform):
        m = Module()
        entry_layout = data.StructLayout({"reader": range(self.readers), "empty": 1})
        order = fifo.SyncFIFOBuffered(width=entry_layout.size, depth=self.commands)
        m.submodules.order = order
        command, beats, status = self.i_command, self.o_data, self.o_status
        entry, head = data.View(entry_layout, order.w_data), data.View(entry_layout, order.r_data)

        # Commands go to the reader of their bank.
        m.d.comb += [
            entry.reader.eq(command.payload.address[self.bank_bytes.bit_length() - 1 :]),
            entry.empty.eq(command.payload.bytes == 0),
            order.w_en.eq(command.valid & command.ready),
        ]
        # Of the oldest command: what is still to come.
        status_taken, beats_taken = Signal(), Signal()
        refused, beats_ready, status_ready = Signal(), Signal(), Signal()
        m.d.comb += [
            refused.eq(status.valid & (status.payload.code == TransferCode.WINDOW)),
            beats_ready.eq(order.r_rdy & ~head.empty & ~beats_taken & ~refused),
            status_ready.eq(order.r_rdy & ~status_taken),
        ]
        for i in range(self.readers):
            to, beats_in, status_in = (getattr(self, f"{name}{i}") for name in ("command", "data", "status"))
            is_next, is_head = entry.reader == i, head.reader == i
            m.d.comb += [
                to.payload.eq(command.payload),
                to.valid.eq(command.valid & order.w_rdy & is_next),
                beats_in.ready.eq(beats.ready & beats_ready & is_head),
                status_in.ready.eq(status.ready & status_ready & is_head),
            ]
            with m.If(is_next):
                m.d.comb += command.ready.eq(to.ready & order.w_rdy)
            with m.If(is_head):
                m.d.comb += [
                    beats.payload.eq(beats_in.payload),
                    beats.valid.eq(beats_in.valid & beats_ready),
                    status.payload.eq(status_in.payload),
                    status.valid.eq(status_in.valid & status_ready),
                ]

        # Both over: the next command's turn, in the next cycle.
        status_over, beats_over = Signal(), Signal()
        m.d.comb += [
            status_over.eq(status_taken | (status.valid & status.ready)),
            beats_over.eq(
                head.empty | beats_taken | refused | (beats.valid & beats.ready & beats.payload.last)
            ),
            order.r_en.eq(status_over & beats_over),
        ]
        with m.If(order.r_rdy):
            m.d.sync += [
                status_taken.eq(status_over & ~order.r_en),
                beats_taken.eq(beats_over & ~order.r_en),
            ]
        return m
