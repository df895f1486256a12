"""What the bus components refuse, and the ports of every design."""

import pytest

from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.bus.bank_readers import BankReaders
from nearkv_hdl.bus.burst import BurstSplitter
from nearkv_hdl.bus.transfer import StatusQueue
from nearkv_hdl.bus.window import WindowCheck
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.verilog import flat_ports


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: AxiReader(48), "bus_bytes is 48; allowed: a power of two from 4 to 128"),
        (lambda: AxiReader(256), "bus_bytes is 256"),
        (lambda: AxiReader(64, burst_beats=12), "burst_beats is 12; allowed: a power of two up to 64"),
        (lambda: AxiReader(64, burst_beats=128), "burst_beats is 128; allowed: a power of two up to 64"),
        (lambda: AxiReader(8, burst_beats=512), "burst_beats is 512; allowed: a power of two up to 256"),
        (lambda: AxiReader(64, outstanding=1), "outstanding is 1; allowed: from 2"),
        (lambda: AxiReader(64, depth=15), "depth is 15; allowed: from burst_beats, 16"),
        (lambda: AxiWriter(64, address_bits=65), "address_bits is 65; allowed: 4 to 64"),
        (lambda: AxiWriter(64, address_bits=10, length_bits=8), "address_bits is 10; allowed: from 11"),
        (lambda: BurstSplitter(4, 2, 3, 3), "address_bits is 3; allowed: from 4"),
        (lambda: WindowCheck(1, 8, 8), "commands is 1; allowed: from 2"),
        (lambda: WindowCheck(2, 8, 9), "length_bits is 9; allowed: 1 to address_bits, 8"),
        (lambda: BankReaders(1, 4096, 64), "readers is 1; allowed: a power of two from 2"),
        (lambda: BankReaders(3, 4096, 64), "readers is 3"),
        (lambda: BankReaders(2, 32, 64), f"bank_bytes is 32; allowed: a power of two from 64 to {1 << 63}"),
        (lambda: BankReaders(2, 96, 64), "bank_bytes is 96"),
        (lambda: BankReaders(4, 32, 4, address_bits=6), "bank_bytes is 32; .* from 4 to 16"),
        (lambda: BankReaders(2, 4096, 64, commands=1), "commands is 1; allowed: from 2"),
        (lambda: StatusQueue(8, 1), "places is 1; allowed: from 2"),
    ],
)
def test_bad_arguments_are_refused(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_every_design_has_a_port_of_its_bus(design):
    for unit, channels in ((AxiReader(design.bus_bytes), "ar r"), (AxiWriter(design.bus_bytes), "aw w b")):
        ports = flat_ports(unit)
        for channel in channels.split():
            assert f"m_axi_{channel}valid" in ports
        data = "rdata" if "r" in channels.split() else "wdata"
        assert len(ports[f"m_axi_{data}"][0]) == 8 * design.bus_bytes
