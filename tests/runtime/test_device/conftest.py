"""Cards of all simulated transports, one behind a stand-in for XRT, and a wrapper that makes them fail."""

import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.codec.key_block import quantise_keys
from nearkv.device.driver import ScorerDriver
from nearkv.device.errors import DeviceTimeout, TransferError
from nearkv.device.pyxrt_transport import PyxrtTransport
from nearkv.device.transport import Transport
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import EngineResult, EngineStalled, GoldenEngine
from nearkv_sim.engines_rtl import RtlEngine
from nearkv_sim.hardware.pcie import PRESETS, PcieLink
from nearkv_sim.pcie.simulator import Simulator
from nearkv_sim.pcie.transport import PcieTransport

# Every head_dim, a group that splits unevenly, 16-bit query codes, two lane beats per bus beat.
TINY = get_design("tiny")
SMALL = replace(
    TINY,
    name="small",
    query_group=3,
    head_dims=(64, 128, 256),
    clock_hz=100_000_000,
    query_bits=10,
    block_tokens=16,
    topk=TopKConfig(capacity=64, lanes=2, token_run=16, candidate_rows=8),
)
DESIGNS = {"tiny": TINY, "small": SMALL}
ENGINES = {"tlm": GoldenEngine, "rtl": RtlEngine}
FAKE = runpy.run_path(str(Path(__file__).with_name("fake_pyxrt.py")))


@pytest.fixture(scope="session")
def engine_of():
    """Engines by transport and design name; elaborated once."""
    made = {}

    def make(transport_name, design_name):
        key = transport_name, design_name
        if key not in made:
            made[key] = ENGINES[transport_name](DESIGNS[design_name])
        return made[key]

    return make


@pytest.fixture(scope="session")
def simulator_of():
    """Running simulators of the transport pcie by design name, for one transport after the other."""
    made = {}

    def make(design_name):
        if design_name not in made:
            made[design_name] = Simulator(DESIGNS[design_name], PRESETS["smartssd"])
        return made[design_name]

    yield make
    for simulator in made.values():
        simulator.close()


@pytest.fixture
def xclbin(tmp_path):
    path = tmp_path / "nearkv_kernel.xclbin"
    path.write_bytes(FAKE["XCLBIN_MAGIC"])
    return str(path)


@pytest.fixture
def open_pyxrt(xclbin):
    """A transport over the stand-in, on the card's time; the stand-in is its attribute `module`."""

    def open_it(card, has_registers=True, **options):
        module = FAKE["FakePyxrt"](card, has_registers)
        options = {"xclbin": xclbin, "memory_bytes": card.memory_bytes, **options}
        transport = PyxrtTransport(card.design, module, clock_ns=lambda: card.now_ps // 1000, **options)
        transport.module = module
        return transport

    return open_it


@pytest.fixture
def open_card(engine_of, open_pyxrt, simulator_of):
    def open_it(transport_name, design_name="small", memory_bytes=64 << 20):
        if transport_name == "pcie":
            simulator = simulator_of(design_name)
            return PcieTransport(simulator.design, simulator.config, memory_bytes, simulator=simulator)
        if transport_name == "pyxrt":
            return open_pyxrt(open_it("tlm", design_name, memory_bytes))
        engine = engine_of(transport_name, design_name)
        return SimulatedCard(
            transport_name, DESIGNS[design_name], PcieLink(PRESETS["smartssd"]), engine, memory_bytes
        )

    return open_it


@pytest.fixture(params=[*ENGINES, "pcie"])
def transport_name(request):
    return request.param


@pytest.fixture
def card(open_card, transport_name):
    with open_card(transport_name) as card:
        yield card


@pytest.fixture
def driver(card):
    return ScorerDriver(card)


class BadEngine:
    """Passes jobs on, but hangs or takes its time for the next ones."""

    def __init__(self, design):
        self.engine = GoldenEngine(design)
        self.hangs = 0
        self.extra_cycles = 0

    def run(self, job):
        if self.hangs:
            self.hangs -= 1
            raise EngineStalled("told to")
        result = self.engine.run(job)
        return EngineResult(result.scores, result.cycles + self.extra_cycles)


class FaultyTransport(Transport):
    """Fails the next `failures[method]` calls, loses stores, loses or invents interrupts, damages data."""

    def __init__(self, inner):
        self.inner = inner
        self.failures = Counter()
        self.lost_stores, self.stores = set(), 0
        self.lost_interrupts = 0
        self.stale_interrupts = 0
        self.damage = None  # called with the next written data, in place
        self.all_ones = False  # what reads give when the link is down

    def _try(self, method):
        if self.failures[method]:
            self.failures[method] -= 1
            raise TransferError(f"{method} was told to fail")
        return getattr(self.inner, method)

    name = property(lambda self: self.inner.name)
    design = property(lambda self: self.inner.design)
    memory_base = property(lambda self: self.inner.memory_base)
    memory_bytes = property(lambda self: self.inner.memory_bytes)
    now_ps = property(lambda self: self.inner.now_ps)
    counters = property(lambda self: self.inner.counters)

    def read_register(self, offset):
        return 0xFFFF_FFFF if self.all_ones else self._try("read_register")(offset)

    def lose(self, *stores):
        """Let these of the stores from now on never arrive."""
        self.lost_stores, self.stores = set(stores), 0

    def write_register(self, offset, value):
        write = self._try("write_register")
        if self.stores not in self.lost_stores:
            write(offset, value)
        self.stores += 1

    def write_memory(self, address, data):
        if self.damage is not None:
            data = data.copy()
            self.damage(data)
        self._try("write_memory")(address, data)

    def read_memory(self, address, nbytes):
        return self._try("read_memory")(address, nbytes)

    def read_gather(self, addresses, row_bytes):
        return self._try("read_gather")(addresses, row_bytes)

    def wait_interrupt(self, timeout_ps):
        if self.stale_interrupts:
            self.stale_interrupts -= 1
            return
        self.inner.wait_interrupt(timeout_ps)
        if self.lost_interrupts:
            self.lost_interrupts -= 1
            raise DeviceTimeout("the interrupt was lost")

    def close(self):
        self.inner.close()


@pytest.fixture
def bad_engine():
    return BadEngine(SMALL)


@pytest.fixture
def faulty(bad_engine):
    card = SimulatedCard("tlm", SMALL, PcieLink(PRESETS["smartssd"]), bad_engine, 64 << 20)
    return FaultyTransport(card)


@pytest.fixture
def rng():
    return np.random.default_rng(2)


@pytest.fixture
def random_keys(rng):
    """FP16 keys of `blocks` blocks, quantised."""

    def make(design, blocks, head_dim):
        keys = rng.standard_normal((blocks * design.block_tokens, head_dim)).astype(np.float16)
        return quantise_keys(keys, design.block_tokens)

    return make
