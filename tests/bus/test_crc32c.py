"""CRC32C in compiled RTL against the host codec, which has its own tests against others."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from nearkv.codec.crc import crc32c
from nearkv_hdl.bus.crc32c import Crc32c, advanced, crc_beat_layout
from nearkv_sim.cosim.compiled import CompiledComponent
from nearkv_sim.cosim.stalls import Stalls
from nearkv_sim.formal import Status, prove_no_deadlock, prove_stream_contract

WIDTHS = (4, 8, 64)


class Bank(wiring.Component):
    """All widths side by side, so that they are compiled once."""

    def __init__(self):
        self.units = {bus_bytes: Crc32c(bus_bytes) for bus_bytes in WIDTHS}
        members = {}
        for bus_bytes, unit in self.units.items():
            members[f"i{bus_bytes}"] = unit.signature.members["i"]
            members[f"o{bus_bytes}"] = unit.signature.members["o"]
        super().__init__(members)

    def elaborate(self, _platform):
        m = Module()
        for bus_bytes, unit in self.units.items():
            m.submodules[f"crc{bus_bytes}"] = unit
            wiring.connect(m, wiring.flipped(getattr(self, f"i{bus_bytes}")), unit.i)
            wiring.connect(m, unit.o, wiring.flipped(getattr(self, f"o{bus_bytes}")))
        return m


@pytest.fixture(scope="module")
def bank():
    return CompiledComponent(Bank(), name="crc32c")


@pytest.fixture(params=WIDTHS)
def bus_bytes(request):
    return request.param


def beats_of(frame, bus_bytes, rng):
    """A frame's beats, uint32 [beats, words]; lanes that do not count hold anything."""
    count = max(1, -(-len(frame) // bus_bytes))
    lanes = rng.integers(0, 256, (count, bus_bytes)).astype(np.uint8)
    lanes.reshape(-1)[: len(frame)] = frame
    size = crc_beat_layout(bus_bytes).size
    bits = np.zeros((count, -(-size // 32) * 32), np.uint8)
    bits[:, : 8 * bus_bytes] = np.unpackbits(lanes, axis=1, bitorder="little")
    # In beats before the last, `bytes` says nothing.
    held = rng.integers(0, bus_bytes + 1, count)
    held[-1] = len(frame) - (count - 1) * bus_bytes
    for bit in range(bus_bytes.bit_length()):
        bits[:, 8 * bus_bytes + bit] = held >> bit & 1
    bits[-1, size - 1] = 1
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def run(bank, bus_bytes, frames, stalls=None):
    rng = np.random.default_rng(8)
    beats = np.concatenate([beats_of(frame, bus_bytes, rng) for frame in frames])
    return bank.run({f"i{bus_bytes}": beats}, {f"o{bus_bytes}": len(frames)}, stalls=stalls, drain_cycles=30)


def test_check_value(bank, bus_bytes):
    text = np.frombuffer(b"123456789", np.uint8)
    result = run(bank, bus_bytes, [text])
    assert result.outputs[f"o{bus_bytes}"][:, 0].tolist() == [0xE306_9283]


@pytest.mark.parametrize("pause", [0, 0.4])
def test_every_byte_count_of_the_last_beat(bank, bus_bytes, pause):
    """Frames of 0 to 2 beats and 2 bytes, in random order, then longer ones."""
    rng = np.random.default_rng(9)
    lengths = [*rng.permutation(2 * bus_bytes + 3), *rng.integers(0, 5000, 20)]
    frames = [rng.integers(0, 256, length).astype(np.uint8) for length in lengths]
    stalls = Stalls(seed=3, input_probability=pause, output_probability=pause) if pause else None
    result = run(bank, bus_bytes, frames, stalls)
    assert result.outputs[f"o{bus_bytes}"][:, 0].tolist() == [crc32c(frame) for frame in frames]


def test_every_bit_of_a_beat_counts(bank, bus_bytes):
    frames = np.zeros((8 * bus_bytes, bus_bytes), np.uint8)
    bits = np.arange(8 * bus_bytes)
    frames[bits, bits // 8] = np.uint8(1) << (bits % 8).astype(np.uint8)
    result = run(bank, bus_bytes, list(frames))
    assert result.outputs[f"o{bus_bytes}"][:, 0].tolist() == [crc32c(frame) for frame in frames]


def test_latency_and_interval(bank, bus_bytes):
    unit = Crc32c(bus_bytes)
    frames = [np.zeros(bus_bytes, np.uint8)] * 40
    result = run(bank, bus_bytes, frames)
    source, sink = result.ports[f"i{bus_bytes}"], result.ports[f"o{bus_bytes}"]
    assert sink.first_cycle - source.first_cycle == unit.latency
    assert sink.last_cycle - sink.first_cycle == 39 * unit.interval
    assert source.last_cycle - source.first_cycle == 39 * unit.interval
    result = run(bank, bus_bytes, [np.zeros(100 * bus_bytes, np.uint8)])
    source, sink = result.ports[f"i{bus_bytes}"], result.ports[f"o{bus_bytes}"]
    assert source.last_cycle - source.first_cycle == 99
    assert sink.first_cycle - source.last_cycle == unit.latency


def test_steps_back_undo_steps_forth():
    for register in (1, 0x8000_0000, 0xDEAD_BEEF):
        for nbytes in (1, 4, 63):
            assert advanced(advanced(register, nbytes), -nbytes) == register
            assert advanced(register, nbytes) != register


def test_contract_and_no_deadlock():
    assert prove_stream_contract(lambda: Crc32c(4)).status is Status.PROVED
    assert prove_no_deadlock(lambda: Crc32c(4), within=2).status is Status.PROVED


def test_bad_widths_are_refused():
    with pytest.raises(ValueError, match="bus_bytes is 12; allowed: a power of two from 4 to 128"):
        Crc32c(12)
