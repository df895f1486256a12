"""A serial line to a compiled device, bit by bit, as a file-like port that can lose and damage bytes."""

import ctypes
import hashlib
from collections import deque
from pathlib import Path

import pytest

from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.top.uart_scorer import UartScorer
from nearkv_hdl.verilog import run_yosys, to_rtlil
from nearkv_sim.cosim.build import build_library

DESIGN = get_design("tiny")
DIVISOR = 4
TIMEOUT = 40 * 10 * DIVISOR  # cycles of 40 bytes
LINE = Path(__file__).with_name("serial_line.cpp").read_text()
BYTES = ctypes.POINTER(ctypes.c_uint8)


@pytest.fixture(scope="session")
def library_of():
    """Compiled devices by design; one for all tests."""
    made = {}

    def make(design):
        if design not in made:
            rtlil = to_rtlil(UartScorer(design, DIVISOR, TIMEOUT))
            digest = hashlib.sha256((rtlil + LINE).encode()).hexdigest()
            path, _ = build_library(
                f"serial-{design.name}", digest, lambda: run_yosys(rtlil, "write_cxxrtl -g0") + LINE
            )
            library = ctypes.CDLL(str(path))
            library.line_open.argtypes, library.line_open.restype = [ctypes.c_uint64], ctypes.c_void_p
            library.line_close.argtypes = [ctypes.c_void_p]
            library.line_send.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64]
            library.line_receive.argtypes = [ctypes.c_void_p, BYTES, ctypes.c_uint64, ctypes.c_uint64]
            library.line_receive.restype = ctypes.c_int64
            made[design] = library
        return made[design]

    return make


class SimulatedPort:
    """What pyserial's `Serial` is to a host: reading lets simulated time pass, up to a silence of two
    timeouts of the device.

    `spoil_sent` and `spoil_received` are called with each byte and return the bytes that arrive instead.
    """

    def __init__(self, library):
        self.library = library
        self.line = library.line_open(DIVISOR)
        self.spoil_sent = self.spoil_received = lambda byte: [byte]
        self.pending = deque()

    def write(self, data):
        arriving = bytes(spoiled for byte in data for spoiled in self.spoil_sent(byte))
        self.library.line_send(self.line, arriving, len(arriving))

    def read(self, size):
        while len(self.pending) < size:
            room = (ctypes.c_uint8 * (size - len(self.pending)))()
            count = self.library.line_receive(self.line, room, len(room), 2 * TIMEOUT)
            assert count >= 0, "a byte without start or stop bit"
            self.pending.extend(spoiled for byte in room[:count] for spoiled in self.spoil_received(byte))
            if count < len(room):
                break
        return bytes(self.pending.popleft() for _ in range(min(size, len(self.pending))))

    def close(self):
        self.library.line_close(self.line)


@pytest.fixture
def design():
    return DESIGN


@pytest.fixture
def open_port(library_of):
    opened = []

    def open_it(design):
        opened.append(SimulatedPort(library_of(design)))
        return opened[-1]

    yield open_it
    for port in opened:
        port.close()


@pytest.fixture
def port(open_port, design):
    return open_port(design)
