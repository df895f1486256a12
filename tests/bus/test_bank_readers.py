"""Readers of several banks as one: order of beats and statuses, whichever memory answers first, and when."""

from itertools import product

import numpy as np
import pytest
from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read
from nearkv_hdl.bus.axi_reader import AxiReader, read_beat_layout
from nearkv_hdl.bus.bank_readers import BankReaders
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words

BUS_BYTES, BURST_BEATS, BANK_BYTES = 8, 4, 256
WINDOW_BASE, WINDOW_BYTES = 0x1000, 0x8000
FAULTY = 1 << 14  # in addresses with this bit some beats fail, by their word's lowest bits
SLVERR_WORD, DECERR_WORD, WORDS = 3, 10, 16
COMMAND, STATUS, BEAT = command_layout(64, 32), status_layout(64), read_beat_layout(BUS_BYTES)


class PacedMemory(wiring.Component):
    """Answers bursts in order, a beat for each token of `pace`; a beat holds its own word address.

    `asked` gives the bursts as they come, and holds them up at will.
    """

    def __init__(self):
        super().__init__(
            {
                "bus": In(axi_read(64, BUS_BYTES)),
                "pace": In(stream.Signature(1)),
                "asked": Out(stream.Signature(64 + 8)),
            }
        )

    def elaborate(self, _platform):
        m = Module()
        bus = self.bus
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=64 + 8, depth=8)
        m.d.comb += [
            self.asked.payload.eq(Cat(bus.araddr, bus.arlen)),
            self.asked.valid.eq(bus.arvalid & queue.w_rdy),
            bus.arready.eq(self.asked.ready & queue.w_rdy),
            queue.w_en.eq(bus.arvalid & bus.arready),
            queue.w_data.eq(self.asked.payload),
        ]
        index, word = Signal(8), Signal(61)
        fails = queue.r_data[FAULTY.bit_length() - 1]
        m.d.comb += [
            word.eq(queue.r_data[3:64] + index),
            bus.rvalid.eq(queue.r_rdy & self.pace.valid),
            self.pace.ready.eq(queue.r_rdy & bus.rready),
            bus.rdata.eq(word),
            bus.rlast.eq(index == queue.r_data[64:]),
            queue.r_en.eq(bus.rvalid & bus.rready & bus.rlast),
        ]
        with m.If(fails & (word % WORDS == SLVERR_WORD)):
            m.d.comb += bus.rresp.eq(TransferCode.SLVERR)
        with m.If(fails & (word % WORDS == DECERR_WORD)):
            m.d.comb += bus.rresp.eq(TransferCode.DECERR)
        with m.If(bus.rvalid & bus.rready):
            m.d.sync += index.eq(Mux(bus.rlast, 0, index + 1))
        return m


class Banks(wiring.Component):
    """Readers with a memory each; `busy{i}`: a beat on port i."""

    def __init__(self, readers, burst_beats=BURST_BEATS, outstanding=4, depth=16):
        self.banks = BankReaders(readers, BANK_BYTES, BUS_BYTES, commands=2 * outstanding)
        self.ports = [AxiReader(BUS_BYTES, burst_beats, outstanding, depth) for _ in range(readers)]
        own, memory = self.banks.signature.members, PacedMemory().signature.members
        members = {name: own[name] for name in ("i_command", "o_data", "o_status")}
        for i in range(readers):
            members |= {f"pace{i}": memory["pace"], f"asked{i}": memory["asked"], f"busy{i}": Out(1)}
        super().__init__(members)

    def elaborate(self, _platform):
        m = Module()
        m.submodules.banks = banks = self.banks
        wiring.connect(m, wiring.flipped(self.i_command), banks.i_command)
        wiring.connect(m, banks.o_data, wiring.flipped(self.o_data))
        wiring.connect(m, banks.o_status, wiring.flipped(self.o_status))
        for i, port in enumerate(self.ports):
            m.submodules[f"port{i}"] = port
            m.submodules[f"memory{i}"] = memory = PacedMemory()
            banks.attach(m, i, port.i_command, port.o_data, port.o_status)
            wiring.connect(m, port.m_axi, memory.bus)
            wiring.connect(m, wiring.flipped(getattr(self, f"pace{i}")), memory.pace)
            wiring.connect(m, memory.asked, wiring.flipped(getattr(self, f"asked{i}")))
            m.d.comb += [
                port.window_base.eq(WINDOW_BASE),
                port.window_bytes.eq(WINDOW_BYTES),
                getattr(self, f"busy{i}").eq(memory.bus.rvalid),
            ]
        return m


class Expected:
    """What any memories must lead to, from the commands alone.

    Attributes:
        beats: (word address, keep, last) in order.
        statuses: (code, address) by command.
        bursts: by reader, (address, beats − 1).
        counts: by reader, beats of each of its commands.

    """

    def __init__(self, readers, commands, burst_beats=BURST_BEATS):
        self.beats, self.statuses = [], []
        self.bursts, self.counts = [[] for _ in range(readers)], [[] for _ in range(readers)]
        for address, nbytes in commands:
            reader = address // BANK_BYTES % readers
            end = address + nbytes
            if nbytes and not WINDOW_BASE <= address < end <= WINDOW_BASE + WINDOW_BYTES:
                self.statuses.append((TransferCode.WINDOW, address))
                continue
            words = range(address // BUS_BYTES, -(-end // BUS_BYTES)) if nbytes else ()
            failed = [found for word in words if (found := self.failure(word))[0]]
            code, word = failed[0] if failed else (TransferCode.OKAY, 0)
            self.statuses.append((code, max(word * BUS_BYTES, address) if failed else 0))
            for word in words:
                lanes = [address <= word * BUS_BYTES + lane < end for lane in range(BUS_BYTES)]
                keep = sum(kept << lane for lane, kept in enumerate(lanes))
                self.beats.append((word, keep, int(word == words[-1])))
            at = list(words)
            while at:
                beats = min(len(at), burst_beats - at[0] % burst_beats)
                self.bursts[reader].append((max(at[0] * BUS_BYTES, address), beats - 1))
                del at[:beats]
            if words:
                self.counts[reader].append(len(words))

    @staticmethod
    def failure(word):
        codes = {SLVERR_WORD: TransferCode.SLVERR, DECERR_WORD: TransferCode.DECERR}
        is_faulty = word * BUS_BYTES & FAULTY
        return codes.get(word % WORDS, TransferCode.OKAY) if is_faulty else TransferCode.OKAY, word


@pytest.fixture(scope="module", params=[2, 4])
def compiled(request):
    unit = CompiledComponent(Banks(request.param), name=f"bank-readers-{request.param}")
    unit.readers = request.param
    return unit


def run(compiled, commands, gaps=None, stalls=None, burst_beats=BURST_BEATS):
    """Send commands; all that comes back is as expected. `gaps`: pauses of `i_command` and memories."""
    expected = Expected(compiled.readers, commands, burst_beats)
    address, nbytes = (np.array(column, np.uint64) for column in zip(*commands, strict=True))
    paces = {f"pace{i}": np.zeros((sum(expected.counts[i]), 1), np.uint32) for i in range(compiled.readers)}
    compiled.reset()
    result = compiled.run(
        {"i_command": pack_words(COMMAND, address=address, bytes=nbytes), **paces},
        {
            "o_data": len(expected.beats),
            "o_status": len(commands),
            **{f"asked{i}": len(bursts) for i, bursts in enumerate(expected.bursts)},
        },
        gaps=gaps,
        stalls=stalls,
        drain_cycles=50,
    )
    beats = unpack_words(BEAT, result.outputs["o_data"])
    found = list(zip(*(np.asarray(beats[name]).tolist() for name in ("data", "keep", "last")), strict=True))
    assert found == expected.beats
    statuses = unpack_words(STATUS, result.outputs["o_status"])
    assert (
        list(zip(statuses["code"].tolist(), statuses["address"].tolist(), strict=True)) == expected.statuses
    )
    for i, bursts in enumerate(expected.bursts):
        asked = result.outputs[f"asked{i}"].astype(np.uint64)
        addresses = (asked[:, 1] << np.uint64(32) | asked[:, 0]).tolist()
        assert list(zip(addresses, asked[:, 2].tolist(), strict=True)) == bursts
    return result


def delays(expected_counts, by_command):
    """Gaps of a memory's tokens: before the first beat of each of its commands."""
    return np.concatenate([[gap, *[0] * (n - 1)] for n, gap in zip(expected_counts, by_command, strict=True)])


def test_a_slow_bank_holds_back_the_fast_one(compiled):
    """Bank 1 answers at once, bank 0 after 100 cycles: beats 512, 513 of bank 0 come before 544 of bank 1."""
    commands = [(0x1000, 16), (0x1100, 8)]
    result = run(compiled, commands, gaps={"pace0": [100, 0], "pace1": [0]})
    assert unpack_words(BEAT, result.outputs["o_data"])["data"].tolist() == [512, 513, 544]
    assert result.flags["busy1"].last_high_cycle < result.ports["o_data"].first_cycle
    assert result.ports["o_status"].first_cycle >= result.flags["busy0"].last_high_cycle


# One beat, several bursts that end in another bank, nothing, refused.
KINDS = [(8, 8), (248, 40), (0, 0), (WINDOW_BYTES, 8)]


def test_every_order_of_answers(compiled):
    """All sequences of three commands of every kind and bank; each answers at once or later than the rest."""
    cases = list(product(product(KINDS, repeat=3), product(range(2), repeat=3), product((0, 60), repeat=3)))
    commands, starts, waits = [], [], [[] for _ in range(compiled.readers)]
    for kinds, banks, pauses in cases:
        for (offset, nbytes), bank, pause in zip(kinds, banks, pauses, strict=True):
            commands.append((WINDOW_BASE + BANK_BYTES * bank + offset, nbytes))
            if nbytes and offset != WINDOW_BYTES:
                waits[bank].append(pause)
        starts += [20, 0, 0]
    expected = Expected(compiled.readers, commands)
    gaps = {f"pace{i}": delays(expected.counts[i], waits[i]) for i in range(2)}
    run(compiled, commands, gaps={"i_command": starts, **gaps})


@pytest.mark.parametrize("pause", [0, 0.3, 0.7])
def test_random_commands_errors_and_pauses(compiled, pause):
    """Any address and length, across banks, a tenth outside the window; errors at first to last beats."""
    rng = np.random.default_rng(12)
    commands = []
    for nbytes in rng.choice([0, 1, 8, 16, 64, 100, 333, 700], 3000).tolist():
        address = WINDOW_BASE + int(rng.integers(-60, WINDOW_BYTES - nbytes + 60))
        commands.append((address, nbytes))
    codes = [code for code, _ in Expected(compiled.readers, commands).statuses]
    assert all(codes.count(code) > 5 for code in TransferCode)
    ports = {"o_status": pause, **{f"pace{i}": (pause * i + 0.2) % 0.9 for i in range(compiled.readers)}}
    run(compiled, commands, stalls=Stalls(3, pause, pause, per_port=ports) if pause else None)


def test_statuses_wait_for_the_beats_before_them(compiled):
    """Nobody takes beats for long: the statuses of the first command come, those of the second do not."""
    commands = [(0x1000, 64), (0x1100, 64), (0x1000, 64), (0x5100, 8)]
    expected = Expected(compiled.readers, commands)
    compiled.reset()
    address, nbytes = (np.array(column, np.uint64) for column in zip(*commands, strict=True))
    paces = {f"pace{i}": np.zeros((sum(expected.counts[i]), 1), np.uint32) for i in range(2)}
    asked = {f"asked{i}": len(expected.bursts[i]) for i in range(2)}
    result = compiled.run(
        {"i_command": pack_words(COMMAND, address=address, bytes=nbytes), **paces},
        {"o_status": 1, **asked},
        drain_cycles=0,
    )
    assert unpack_words(STATUS, result.outputs["o_status"])["code"].tolist() == [TransferCode.OKAY]
    result = compiled.run({}, {"o_data": 25, "o_status": 3}, drain_cycles=50)
    beats, statuses = result.ports["o_data"], result.ports["o_status"]
    assert 8 <= statuses.first_cycle <= 9
    assert beats.last_cycle - beats.first_cycle == 24


def test_latency_and_interval(compiled):
    """Nothing is added to the readers'; beats follow each other without a gap, whoever has them."""
    unit, port = BankReaders(compiled.readers, BANK_BYTES, BUS_BYTES), AxiReader(BUS_BYTES)
    count, nbytes = 200, 64
    commands = [
        (WINDOW_BASE + BANK_BYTES * i % (BANK_BYTES * compiled.readers), nbytes) for i in range(count)
    ]
    result = run(compiled, commands)
    taken, beats = result.ports["i_command"].first_cycle, result.ports["o_data"]
    assert result.ports["asked0"].first_cycle - taken == unit.latency + port.latency
    assert beats.first_cycle - result.flags["busy0"].first_high_cycle == unit.latency + port.data_latency
    assert beats.last_cycle - beats.first_cycle == (beats.transfers - 1) * unit.interval
    assert unit.order_latency < port.latency + port.data_latency
    assert result.ports["o_status"].last_cycle <= beats.last_cycle


def test_the_smallest_readers_lose_nothing():
    """Two bursts of a beat under way, so that beats and statuses come in consecutive cycles."""
    unit = CompiledComponent(Banks(2, 1, 2, 2), name="bank-readers-smallest")
    unit.readers = 2
    commands = [(WINDOW_BASE + 8 * i, 8) for i in range(100)]
    run(unit, commands, burst_beats=1)
    run(unit, commands, burst_beats=1, stalls=Stalls(5))
