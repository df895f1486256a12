"""Components of the links to a host that can be used alone; see `nearkv_sim.synthesis.catalogue`."""

from __future__ import annotations

from nearkv_hdl.pcie.completion_room import CompletionRoom
from nearkv_hdl.pcie.completions import CompletionReceiver
from nearkv_hdl.pcie.dword_memory import DwordMemory
from nearkv_hdl.pcie.read_requester import ReadRequester
from nearkv_hdl.pcie.read_splitter import ReadSplitter
from nearkv_hdl.pcie.request_arbiter import RequestArbiter
from nearkv_hdl.pcie.requester import MemoryRequester
from nearkv_hdl.pcie.tags import TagPool
from nearkv_hdl.pcie.write_packer import WritePacker
from nearkv_hdl.pcie.write_requester import WriteRequester
from nearkv_hdl.spec.design import Family
from nearkv_hdl.top.uart import UartReceiver, UartTransmitter
from nearkv_sim.synthesis.catalogue_entry import Entry

TAGS = 32  # without extended tags
LEAST_HEADERS, LEAST_BYTES = 64, 5120  # of a completion buffer
ROWS = 64
UART_DIVISOR = 217  # 115,200 bits a second at 25 MHz

REQUESTER_GOLDEN = "sim/nearkv_sim/golden/pcie_requests.py"
REQUESTER_TESTS = "tests/pcie_rtl/test_requester.py"
WRITE_TESTS = "tests/pcie_rtl/test_requester_writes.py"
REQUESTER_PROOFS = "tests/formal/test_pcie_requester.py"
PACKET_PROOFS = "tests/formal/test_pcie_packets.py"
UART_TESTS = "tests/boards/test_uart.py"
ON_ULTRASCALE_PLUS = "on UltraScale+"
XCUP = Family.ULTRASCALE_PLUS

LINK_COMPONENTS = (
    Entry(
        ReadSplitter,
        ON_ULTRASCALE_PLUS,
        "bursts → pieces",
        REQUESTER_GOLDEN,
        REQUESTER_TESTS,
        REQUESTER_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: CompletionRoom(LEAST_HEADERS, LEAST_BYTES),
        f"{LEAST_HEADERS} headers, {LEAST_BYTES} bytes, {ON_ULTRASCALE_PLUS}",
        "–",
        None,
        REQUESTER_TESTS,
        REQUESTER_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: TagPool(TAGS),
        f"{TAGS} tags, {ON_ULTRASCALE_PLUS}",
        "–",
        None,
        REQUESTER_TESTS,
        REQUESTER_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: CompletionReceiver(TAGS, ROWS),
        f"{TAGS} tags, {ROWS} rows, {ON_ULTRASCALE_PLUS}",
        "packets → rows",
        None,
        REQUESTER_TESTS,
        family=XCUP,
    ),
    Entry(
        lambda: DwordMemory(ROWS),
        f"{ROWS} rows, {ON_ULTRASCALE_PLUS}",
        "any",
        None,
        REQUESTER_TESTS,
        family=XCUP,
    ),
    Entry(
        lambda: ReadRequester(TAGS, LEAST_HEADERS, LEAST_BYTES),
        f"{TAGS} tags, {LEAST_HEADERS} headers, {LEAST_BYTES} bytes, {ON_ULTRASCALE_PLUS}",
        "AXI4 ↔ requests, packets",
        REQUESTER_GOLDEN,
        REQUESTER_TESTS,
        family=XCUP,
    ),
    Entry(
        lambda: WritePacker(ROWS),
        f"{ROWS} rows, {ON_ULTRASCALE_PLUS}",
        "bursts → payloads",
        REQUESTER_GOLDEN,
        WRITE_TESTS,
        REQUESTER_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: WriteRequester(ROWS),
        f"{ROWS} rows, {ON_ULTRASCALE_PLUS}",
        "AXI4 → packets",
        REQUESTER_GOLDEN,
        WRITE_TESTS,
        PACKET_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: RequestArbiter(TAGS),
        f"{TAGS} tags, {ON_ULTRASCALE_PLUS}",
        "packets",
        None,
        REQUESTER_TESTS,
        PACKET_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: MemoryRequester(TAGS, LEAST_HEADERS, LEAST_BYTES),
        f"{TAGS} tags, {LEAST_HEADERS} headers, {LEAST_BYTES} bytes, {ON_ULTRASCALE_PLUS}",
        "AXI4 ↔ packets",
        REQUESTER_GOLDEN,
        REQUESTER_TESTS,
        PACKET_PROOFS,
        XCUP,
    ),
    Entry(
        lambda: UartReceiver(UART_DIVISOR), f"{UART_DIVISOR} cycles per bit", "line → bytes", None, UART_TESTS
    ),
    Entry(
        lambda: UartTransmitter(UART_DIVISOR),
        f"{UART_DIVISOR} cycles per bit",
        "bytes → line",
        None,
        UART_TESTS,
    ),
)
