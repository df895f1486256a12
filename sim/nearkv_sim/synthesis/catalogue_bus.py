"""Components of the bus that can be used alone; see `nearkv_sim.synthesis.catalogue`."""

from __future__ import annotations

from nearkv_hdl.bus.axi_lite import AxiLiteSubordinate
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.axi_writer import AxiWriter
from nearkv_hdl.bus.control import ControlPort
from nearkv_hdl.bus.crc32c import Crc32c
from nearkv_hdl.bus.csr import RegisterBlock
from nearkv_hdl.spec import registers
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_sim.synthesis.catalogue_entry import Entry

TINY = DESIGNS["tiny"]
CONTROL_TESTS = "tests/bus/test_control.py"
MASTER_TESTS = "tests/bus/test_masters.py"
MASTER_PROOFS = "tests/bus/test_master_proofs.py"

BUS_COMPONENTS = (
    Entry(lambda: AxiReader(8), "8 bytes, bursts of 16", "any", None, MASTER_TESTS, MASTER_PROOFS),
    Entry(lambda: AxiWriter(8), "8 bytes, bursts of 16", "any", None, MASTER_TESTS, MASTER_PROOFS),
    Entry(AxiLiteSubordinate, "–", "32 bit", None, CONTROL_TESTS, MASTER_PROOFS),
    Entry(
        lambda: RegisterBlock(registers.REGISTERS, registers.identity_values(TINY)),
        "`tiny`",
        "32 bit",
        None,
        CONTROL_TESTS,
    ),
    Entry(
        lambda: ControlPort(TINY), "`tiny`", "32 bit", "sim/nearkv_sim/card/register_file.py", CONTROL_TESTS
    ),
    Entry(
        lambda: Crc32c(8), "8 bytes", "bytes → 32 bit", "host/nearkv/codec/crc.py", "tests/bus/test_crc32c.py"
    ),
)
