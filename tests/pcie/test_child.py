"""The simulator's process: ends with its transport, is missed politely, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.pcie import simulator as simulator_module
from nearkv_sim.pcie.simulator import Simulator
from nearkv_sim.pcie.transport import PcieTransport
from nearkv_sim.transports import open_pcie

TINY = get_design("tiny")
SMARTSSD = PRESETS["smartssd"]


@pytest.fixture
def start(monkeypatch):
    """Simulators whose folders lie in a folder that must be empty afterwards."""
    folders = Path(tempfile.mkdtemp(prefix="nk-"))  # short: the path of a socket has at most 107 bytes
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    yield lambda **options: Simulator(TINY, SMARTSSD, **options)
    assert list(folders.iterdir()) == []
    folders.rmdir()


def has_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_killed_simulator_is_a_device_error_with_its_log(start):
    simulator = start()
    transport = PcieTransport(TINY, SMARTSSD, 1 << 20, simulator=simulator)
    os.kill(simulator.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match=r"the simulator ended during read_register\n(.*\n)*.*cocotb"):
        transport.read_register(0)
    with pytest.raises(DeviceError, match="the simulator ended during read_register"):
        transport.read_register(0)
    transport.close()
    simulator.close()
    assert has_gone(simulator.pid)


def test_a_hanging_simulator_is_a_timeout_and_is_ended(start):
    simulator = start(call_seconds=1)
    os.kill(simulator.pid, signal.SIGSTOP)
    with pytest.raises(DeviceTimeout, match="no answer to link_report within 1 s"):
        simulator.call("link_report")
    assert has_gone(simulator.pid)
    simulator.close()
    simulator.close()


def test_giving_up_before_it_runs_ends_the_build(start, monkeypatch):
    monkeypatch.setattr(simulator_module, "START_SECONDS", 0.5)
    before = set(threading.enumerate())
    with pytest.raises(DeviceTimeout, match=r"no simulation after 0\.5 s"):
        start()
    assert set(threading.enumerate()) == before


def test_an_interrupted_call_ends_the_simulator(start, monkeypatch):
    simulator = start()
    pid = simulator.pid

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulator._channel, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulator.call("link_report")
    assert has_gone(pid)
    with pytest.raises(DeviceError, match="link_report was interrupted"):
        simulator.call("link_report")
    simulator.close()


def test_a_program_that_forgets_to_close_leaves_no_process():
    code = (
        "from nearkv_hdl.spec.designs import get_design\n"
        "from nearkv_sim.transports import open_pcie\n"
        "transport = open_pcie(get_design('tiny'))\n"
        "print(transport.simulator_pid, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    deadline = time.monotonic() + 60
    while not has_gone(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_killed_program_leaves_no_process_and_no_folder():
    code = (
        "import time\n"
        "from nearkv_hdl.spec.designs import get_design\n"
        "from nearkv_sim.transports import open_pcie\n"
        "transport = open_pcie(get_design('tiny'))\n"
        "print(transport.simulator_pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    folders = Path(tempfile.mkdtemp(prefix="nk-"))
    environment = {**os.environ, "TMPDIR": str(folders)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        pid = int(program.stdout.readline())
        assert [folder.name.startswith("nearkv-pcie-") for folder in folders.iterdir()] == [True]
        program.kill()
    deadline = time.monotonic() + 60
    while not has_gone(pid) or any(folders.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    folders.rmdir()


def test_a_bad_kernel_or_option_is_refused_before_a_process_starts(simulator, tmp_path):
    with pytest.raises(ValueError, match="memory_bytes is 0; allowed: from 1"):
        open_pcie(TINY, memory_bytes=0)
    with pytest.raises(ValueError, match="link is 'isa'; allowed: smartssd"):
        open_pcie(TINY, link="isa")
    with pytest.raises(FileNotFoundError):
        open_pcie(TINY, faults=tmp_path / "plan.yaml")
    with pytest.raises(OSError, match="tlp"):
        PcieTransport(TINY, SMARTSSD, 1 << 20, tlp_log=tmp_path / "no" / "tlp", simulator=simulator)
    with pytest.raises(ValueError, match="same design and link"):
        PcieTransport(TINY, PRESETS["gen4_x4"], 1 << 20, simulator=simulator)
    with pytest.raises(DeviceError, match="bus_bytes is 128; allowed: up to 64"):
        open_pcie(replace(TINY, bus_bytes=128))
    transport = PcieTransport(TINY, SMARTSSD, 1 << 20, simulator=simulator)
    with transport, pytest.raises(ValueError, match="data is float64"):
        transport.write_memory(transport.memory_base, np.zeros(4))


def test_a_build_ends_with_the_program_that_waits_for_it():
    """That program was killed, so that it could end nothing itself."""
    code = (
        "import os, time\n"
        "from nearkv_sim.cosim.runner_child import end_with\n"
        "parent = os.getpid()\n"
        "if child := os.fork():\n"
        "    print(child, flush=True)\n"
        "else:\n"
        "    os.setsid()\n"
        "    end_with(parent)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while not has_gone(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)
