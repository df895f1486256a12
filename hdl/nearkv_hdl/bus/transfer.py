"""What AXI managers have in common: commands, statuses, byte lanes, the first error of a command."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import RESPONSE_BITS, Response
from nearkv_hdl.stream.credit import BUFFER_LATENCY

# Of a SyncFIFOBuffered that is written without asking: one of two places is not free again before what came
# first has moved on to the output, so that two writes in a row would lose the second.
LEAST_DEPTH = 3


class TransferCode(IntEnum):
    """How a transfer ended."""

    OKAY = Response.OKAY
    WINDOW = 1  # refused: it would have left the window, nothing was issued
    SLVERR = Response.SLVERR
    DECERR = Response.DECERR


def command_layout(address_bits: int, length_bits: int):
    """A transfer: `bytes` bytes, 0 included, from `address`."""
    return data.StructLayout({"address": address_bits, "bytes": length_bits})


def status_layout(address_bits: int):
    """How a transfer ended, and where: the address of the first failure, 0 if there was none."""
    return data.StructLayout({"code": RESPONSE_BITS, "address": address_bits})


def lane_mask(first, last, bus_bytes: int):
    """One bit per byte lane, set from `first` to `last`, both included."""
    return Cat((first <= lane) & (last >= lane) for lane in range(bus_bytes))


def code_of(issued, refused, response):
    """TransferCode of a burst's response, or of a command that issued none."""
    without = Mux(refused, TransferCode.WINDOW, TransferCode.OKAY)
    return Mux(issued, Mux(response[1], response, TransferCode.OKAY), without)


class StatusQueue(wiring.Component):
    """Makes one status of all that is heard of a command.

    Formula: code and address of the first report that is not OKAY, up to and with the one marked `last`;
    otherwise OKAY and 0.
    Timing: latency 2 from the last report, interval 1. Reports cannot be refused: let no more commands in
    than there are places.
    Numerics: none.
    Reset: queue, first error.

    Args:
        address_bits: width of addresses.
        places: statuses that may wait, from 2.

    Members:
        i: reports; `last` ends a command.
        o: statuses.

    Raises ValueError for `places` below 2.

    """

    def __init__(self, address_bits: int, places: int) -> None:
        if places < 2:
            raise ValueError(f"places is {places}; allowed: from 2")
        self.places = places
        self.status_layout = status_layout(address_bits)
        report = data.StructLayout({"status": self.status_layout, "last": 1})
        super().__init__(
            {
                "i": In(stream.Signature(report, always_ready=True)),
                "o": Out(stream.Signature(self.status_layout)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from the last report to the status."""
        return BUFFER_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two reports."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(
            width=self.status_layout.size, depth=max(self.places, LEAST_DEPTH)
        )
        report = self.i.payload
        first = Signal(self.status_layout, reset_less=True)
        failed = Signal()  # `first` is an error
        status = Signal(self.status_layout)
        with m.If(failed):
            m.d.comb += status.eq(first)
        with m.Elif(report.status.code != TransferCode.OKAY):
            m.d.comb += status.eq(report.status)
        with m.If(self.i.valid):
            m.d.sync += [first.eq(status), failed.eq((status.code != TransferCode.OKAY) & ~report.last)]
        m.d.comb += [
            queue.w_en.eq(self.i.valid & report.last),
            queue.w_data.eq(status),
            self.o.valid.eq(queue.r_rdy),
            Value.cast(self.o.payload).eq(queue.r_data),
            queue.r_en.eq(self.o.ready),
        ]
        return m
