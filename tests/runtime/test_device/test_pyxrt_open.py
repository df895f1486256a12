"""Opening the transport for XRT: what is refused, by whom, and how an installed module is found."""

import sys

import numpy as np
import pytest

from nearkv.device.errors import DeviceError, TransferError
from nearkv.device.pyxrt_transport import PyxrtTransport
from nearkv.device.transport import open_transport, transport_options
from nearkv_hdl.spec.designs import get_design

MEMORY_BYTES = 1 << 20


def no_device(_index):
    """As pybind11 passes std::invalid_argument on."""
    raise ValueError("no such BDF")


@pytest.fixture
def card(open_card):
    return open_card("tlm", memory_bytes=MEMORY_BYTES)


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"memory_bytes": 0}, ValueError, "memory_bytes is 0; allowed: multiples of 4096 up to 4294963200"),
        ({"memory_bytes": 5000}, ValueError, "memory_bytes is 5000"),
        ({"memory_bytes": 1 << 32}, ValueError, "memory_bytes is 4294967296"),
        ({"memory_bytes": 2 * MEMORY_BYTES}, DeviceError, "open: Failed to allocate BO"),
        ({"device_index": -1}, ValueError, "device_index is -1; allowed: from 0"),
        ({"device_index": 1}, DeviceError, "open: Could not open device with index '1'"),
        ({"xclbin": "/nowhere"}, ValueError, "xclbin is '/nowhere'; allowed: path of a file"),
        ({"xclbin": __file__}, DeviceError, "open: Invalid xclbin"),
        ({"kernel": "vadd"}, DeviceError, "open: No compute units matching 'vadd'"),
        ({"has_registers": False}, DeviceError, r"no kernel.read_register; XRT up to 2\.14"),
    ],
)
def test_what_cannot_be_opened(open_pyxrt, card, options, error, reason):
    with pytest.raises(error, match=reason) as caught:
        open_pyxrt(card, **options)
    assert not isinstance(caught.value, TransferError)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"is_busy": True}, "open: failed to open ip context: Device or resource busy"),
        ({"host_bytes": 0}, "bad_alloc"),
    ],
)
def test_a_busy_card_and_a_full_host_are_the_devices_fault(open_pyxrt, card, xclbin, state, reason):
    module = open_pyxrt(card).module
    vars(module).update(state)
    with pytest.raises(DeviceError, match=reason) as caught:
        PyxrtTransport(card.design, module, xclbin, memory_bytes=MEMORY_BYTES)
    assert not isinstance(caught.value, TransferError)


def test_without_xrt_it_says_what_is_missing(monkeypatch, xclbin):
    monkeypatch.setitem(sys.modules, "pyxrt", None)
    with pytest.raises(
        ValueError, match=r"needs XRT's Python module, which XRT installs \(source its setup\.sh\)"
    ):
        open_transport("pyxrt", get_design("tiny"), xclbin=xclbin)


def test_installed_xrt_is_found_by_name(monkeypatch, open_pyxrt, card, xclbin):
    module = open_pyxrt(card).module
    monkeypatch.setitem(sys.modules, "pyxrt", module)
    assert transport_options("pyxrt") == ["xclbin", "device_index", "kernel", "memory_bytes"]
    with open_transport("pyxrt", card.design, xclbin=xclbin, memory_bytes=8192) as transport:
        transport.write_memory(transport.memory_base + 3, np.arange(9, dtype=np.uint8))
        assert np.array_equal(transport.read_memory(transport.memory_base + 3, 9), np.arange(9))
