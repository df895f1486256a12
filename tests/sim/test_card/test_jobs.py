"""Job control: what a job may touch, how it fails, when its end is seen."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, BlockDescriptor, KeyFormat
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import EngineStalled, GoldenEngine
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.hardware.pcie import PRESETS, PcieLink

HEADS, HEAD_DIM, BLOCKS = 2, 64, 3
ROW_BYTES = HEADS * HEAD_DIM * 2  # 10-bit codes take 16 bits
GUARD = 0xA5


class HangingEngine:
    def run(self, job):
        raise EngineStalled(f"{len(job.planes)} blocks were too many")


class Bench:
    """A card with one good job laid out in memory; tests bend it."""

    def __init__(self, design, engine=None):
        self.design = design
        self.card = SimulatedCard(
            "tlm", design, PcieLink(PRESETS["smartssd"]), engine or GoldenEngine(design), 1 << 20
        )
        base = self.card.memory_base
        self.block_bytes = design.layout(HEAD_DIM).block_bytes
        self.result_bytes = BLOCKS * design.block_tokens * HEADS * 4
        self.keys, self.queries = base + 0x10000, base + 0x20000
        self.list, self.result = base + 0x30000, base + 0x40000
        rng = np.random.default_rng(7)
        for block in range(BLOCKS):
            self.write(self.keys + 4096 * block, rng.integers(0, 256, self.block_bytes))
        self.codes = rng.integers(-511, 512, (BLOCKS, HEADS, HEAD_DIM)).astype("<i2")
        self.write(self.queries, self.codes.view(np.uint8).reshape(-1))
        self.write(self.result - 64, np.full(self.result_bytes + 128, GUARD))
        self.descriptors = [
            BlockDescriptor(
                key_address=self.keys + 4096 * block,
                query_address=self.queries + ROW_BYTES * block,
                first_token=100 + 16 * block,
                head_dim=HEAD_DIM,
                key_format=KeyFormat(block % 2),
                bias=(7, -9),
                shift=(0, 3),
            )
            for block in range(BLOCKS)
        ]
        self.arguments = {
            reg.DESCRIPTOR_ADDRESS: self.list,
            reg.KEY_ADDRESS: self.keys,
            reg.KEY_BYTES: 4096 * (BLOCKS - 1) + self.block_bytes,
            reg.QUERY_ADDRESS: self.queries,
            reg.QUERY_BYTES: ROW_BYTES * BLOCKS,
            reg.RESULT_ADDRESS: self.result,
            reg.RESULT_BYTES: self.result_bytes,
            reg.BLOCK_COUNT: BLOCKS,
            reg.HEAD_DIM: HEAD_DIM,
            reg.HEADS: HEADS,
        }
        self.enable_interrupts()

    def enable_interrupts(self):
        self.set(reg.GIER, 1)
        self.set(reg.IER, 1)

    def write(self, address, values):
        self.card.write_memory(address, np.asarray(values).astype(np.uint8))

    def set(self, register, value):
        for at in range(0, register.size_bytes, 4):
            self.card.write_register(register.offset + at, value >> 8 * at & 0xFFFF_FFFF)

    def get(self, register):
        words = [self.card.read_register(register.offset + at) for at in range(0, register.size_bytes, 4)]
        return sum(word << 32 * index for index, word in enumerate(words))

    def start(self):
        self.write(self.list, np.frombuffer(b"".join(d.pack() for d in self.descriptors), np.uint8))
        for register, value in self.arguments.items():
            self.set(register, value)
        self.set(reg.CTRL, 1)

    def run(self):
        self.start()
        self.card.wait_interrupt(10**9)
        return self.get(reg.STATUS)

    @property
    def error(self):
        return reg.ErrorCode(self.get(reg.ERROR_CODE)), self.get(reg.ERROR_ADDRESS), self.get(reg.ERROR_TOKEN)

    def acknowledge(self):
        self.set(reg.ISR, 1)
        self.set(reg.CTRL, reg.CTRL.mask("ap_continue"))

    def untouched(self):
        around = self.card.read_memory(self.result - 64, self.result_bytes + 128)
        return bool((around == GUARD).all())


@pytest.fixture
def bench(small_design):
    return Bench(small_design)


def test_a_good_job_writes_its_result_and_nothing_else(bench):
    assert bench.run() == reg.JobState.DONE
    memory = bench.card.read_memory(bench.result - 64, bench.result_bytes + 128)
    assert (memory[:64] == GUARD).all()
    assert (memory[-64:] == GUARD).all()
    scores = memory[64:-64].view("<i4").reshape(-1, HEADS)
    for block, descriptor in enumerate(bench.descriptors):
        planes = bench.card.read_memory(descriptor.key_address, bench.block_bytes)
        nibbles = np.stack([planes & 15, planes >> 4], axis=1).reshape(2, -1).astype(np.int64)
        high = (nibbles[0] ^ 8) - 8
        codes = 16 * high + (nibbles[1] if descriptor.key_format is KeyFormat.INT8 else 0)
        dots = codes.reshape(-1, HEAD_DIM) @ bench.codes[block].T.astype(np.int64)
        tokens = bench.design.block_tokens
        expected = np.array([7, -9]) + dots * np.array([1, 8])
        assert np.array_equal(scores[block * tokens : (block + 1) * tokens], expected)


def out_of(window, offset):
    """Descriptor 1 with an address moved."""

    def bend(bench):
        moved = getattr(bench.descriptors[1], window) + offset
        bench.descriptors[1] = replace(bench.descriptors[1], **{window: moved})
        return moved

    return bend


def descriptor(**changes):
    def bend(bench):
        bench.descriptors[1] = replace(bench.descriptors[1], **changes)
        return changes.get("query_address", 0)

    return bend


def argument(register, change):
    def bend(bench):
        bench.arguments[register] += change
        address = bench.arguments[register]
        return address if register in (reg.DESCRIPTOR_ADDRESS, reg.RESULT_ADDRESS) else 0

    return bend


E = reg.ErrorCode
OF_THE_JOB = [
    (argument(reg.BLOCK_COUNT, -BLOCKS), E.BLOCK_COUNT),
    (argument(reg.HEADS, -HEADS), E.HEADS),
    (argument(reg.HEADS, 2), E.HEADS),  # the group is 3
    (argument(reg.HEAD_DIM, 1), E.HEAD_DIM),
    (argument(reg.HEAD_DIM, 1 << 20), E.HEAD_DIM),
    (argument(reg.DESCRIPTOR_ADDRESS, 32), E.DESCRIPTOR_ADDRESS),
    (argument(reg.DESCRIPTOR_ADDRESS, 1 << 40), E.DESCRIPTOR_ADDRESS),
    (argument(reg.DESCRIPTOR_ADDRESS, -(1 << 32)), E.DESCRIPTOR_ADDRESS),
    (argument(reg.DESCRIPTOR_ADDRESS, 0x1000), E.UNWRITTEN),
    (argument(reg.RESULT_ADDRESS, 4), E.RESULT_ADDRESS),
    (argument(reg.RESULT_ADDRESS, 1 << 20), E.RESULT_ADDRESS),
    (argument(reg.RESULT_ADDRESS, -(1 << 32)), E.RESULT_ADDRESS),
]
OF_BLOCK_1 = [
    (descriptor(head_dim=128), E.HEAD_DIM),
    (descriptor(bias=(1,), shift=(0,)), E.HEADS),
    (descriptor(key_format=2), E.KEY_FORMAT),
    (descriptor(shift=(0, 8)), E.SHIFT),
    (out_of("key_address", 64), E.KEY_ADDRESS),
    (out_of("key_address", 2 * 4096), E.KEY_ADDRESS),
    (out_of("key_address", -2 * 4096), E.KEY_ADDRESS),
    (out_of("key_address", (1 << 64) - (1 << 33)), E.KEY_ADDRESS),
    (out_of("query_address", 32), E.QUERY_ADDRESS),
    (out_of("query_address", 2 * ROW_BYTES), E.QUERY_ADDRESS),
    (out_of("query_address", -2 * ROW_BYTES), E.QUERY_ADDRESS),
    (out_of("query_address", (1 << 64) - (1 << 33)), E.QUERY_ADDRESS),
    (descriptor(query_address=(1 << 63) - 64), E.QUERY_ADDRESS),
]


@pytest.mark.parametrize(("bend", "code"), OF_THE_JOB)
def test_a_bad_argument_stops_the_job(bench, bend, code):
    address = bend(bench)
    assert bench.run() == reg.JobState.FAILED
    found, at, token = bench.error
    assert (found, token) == (code, 0)
    assert at == address
    assert bench.untouched()


def test_a_short_result_window_stops_the_job(bench):
    bench.arguments[reg.RESULT_BYTES] -= 1
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.RESULT_ADDRESS, bench.result, 0)


@pytest.mark.parametrize(("bend", "code"), OF_BLOCK_1)
def test_a_bad_descriptor_stops_the_job(bench, bend, code):
    address = bend(bench)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (code, address, 116)
    assert bench.untouched()


@pytest.mark.parametrize(
    ("register", "change", "token", "code"),
    [
        (reg.KEY_BYTES, -1, 132, E.KEY_ADDRESS),
        (reg.KEY_ADDRESS, 1, 100, E.KEY_ADDRESS),
        (reg.QUERY_BYTES, -1, 132, E.QUERY_ADDRESS),
        (reg.QUERY_ADDRESS, 1, 100, E.QUERY_ADDRESS),
    ],
)
def test_windows_are_exact_to_the_byte(bench, register, change, token, code):
    bench.arguments[register] += change
    assert bench.run() == reg.JobState.FAILED
    assert (bench.error[0], bench.error[2]) == (code, token)


def test_a_window_beyond_the_memory_grants_nothing(bench):
    last = bench.card.memory_base + (1 << 20)
    bench.arguments[reg.KEY_BYTES] = (1 << 64) - 1
    bench.descriptors[2] = replace(bench.descriptors[2], key_address=last)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.KEY_ADDRESS, last, 132)


def test_the_first_bad_block_is_reported(bench):
    bench.descriptors[2] = replace(bench.descriptors[2], head_dim=128)
    bench.descriptors[1] = replace(bench.descriptors[1], query_address=1, shift=(9, 9))
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.SHIFT, 0, 116)


@pytest.mark.parametrize("window", ["key", "query"])
def test_unwritten_memory_is_not_scored(bench, window):
    empty = bench.card.memory_base + 0x80000
    address, size = getattr(reg, f"{window.upper()}_ADDRESS"), getattr(reg, f"{window.upper()}_BYTES")
    bench.arguments[size] += empty - bench.arguments[address]
    bench.descriptors[1] = replace(bench.descriptors[1], **{f"{window}_address": empty})
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.UNWRITTEN, empty, 116)


@pytest.mark.parametrize("code", [512, -512, 32767, -32768])
def test_a_code_outside_the_query_format(bench, code):
    bench.codes[1, 1, 5] = code
    bench.write(bench.queries, bench.codes.view(np.uint8).reshape(-1))
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.QUERY_CODE, bench.descriptors[1].query_address, 116)


def test_a_score_that_does_not_fit(bench):
    bench.descriptors[0] = replace(bench.descriptors[0], bias=(2**31 - 1, 0), shift=(7, 7))
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.SCORE_OVERFLOW, 0, 0)
    assert bench.untouched()


def test_an_error_is_kept_until_the_reset(bench):
    good = bench.descriptors[0]
    bench.descriptors[0] = replace(good, shift=(9, 0))
    assert bench.run() == reg.JobState.FAILED
    bench.acknowledge()
    bench.descriptors[0] = replace(good, head_dim=128)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.SHIFT, 0, 100)
    bench.acknowledge()
    bench.descriptors[0] = good
    assert bench.run() == reg.JobState.FAILED
    assert bench.untouched()
    bench.set(reg.RESET, 1)
    assert bench.error == (E.NONE, 0, 0)
    bench.enable_interrupts()
    assert bench.run() == reg.JobState.DONE
    assert not bench.untouched()


def test_the_end_is_seen_when_its_cycles_have_passed(bench):
    bench.start()
    card = bench.card
    cycles = job_cycles(bench.design, [HEAD_DIM] * BLOCKS, [d.key_format for d in bench.descriptors])
    job_ps = cycles * 10**12 // bench.design.clock_hz
    start_ps = card.now_ps
    assert bench.get(reg.CTRL) == reg.CTRL.mask("ap_start")
    assert bench.get(reg.STATUS) == reg.JobState.RUNNING
    assert bench.untouched()
    assert card.counters.jobs == 0
    elapsed = (card.now_ps - start_ps) * bench.design.clock_hz // 10**12
    assert 0 < bench.get(reg.CYCLES) <= elapsed
    card.wait_interrupt(10**9)
    link = PRESETS["smartssd"]
    latency_ps = 2 * link.one_way_latency_ps + link.interrupt_latency_ps
    assert 0 <= card.now_ps - start_ps - job_ps - latency_ps < 200_000
    assert bench.get(reg.STATUS) == reg.JobState.DONE
    assert bench.get(reg.CTRL) == reg.CTRL.pack(ap_done=1, ap_idle=1, ap_ready=1)
    assert bench.get(reg.CYCLES) == card.counters.device_cycles == cycles
    assert bench.get(reg.TOKENS) == BLOCKS * bench.design.block_tokens
    assert bench.get(reg.STREAMED_BYTES) == 5 * bench.block_bytes // 2
    assert card.counters.jobs == 1
    assert not bench.untouched()
    bench.acknowledge()
    assert bench.get(reg.CTRL) == reg.CTRL.mask("ap_idle")
    bench.start()
    assert bench.get(reg.TOKENS) == bench.get(reg.STREAMED_BYTES) == 0


def test_the_result_can_be_polled_in_memory(bench):
    bench.start()
    polls = [bench.untouched() for _ in range(100)]
    assert polls[0]
    assert not polls[-1]


@pytest.mark.parametrize("masked", [reg.GIER, reg.IER])
def test_interrupts_can_be_masked(bench, masked):
    bench.set(masked, 0)
    bench.start()
    with pytest.raises(TimeoutError):
        bench.card.wait_interrupt(10**9)
    assert bench.get(reg.STATUS) == reg.JobState.DONE
    assert bench.get(reg.ISR) == (1 if masked is reg.GIER else 0)


def test_an_interrupt_needs_a_rising_edge(bench):
    bench.run()
    bench.set(reg.CTRL, reg.CTRL.mask("ap_continue"))
    bench.start()
    with pytest.raises(TimeoutError):
        bench.card.wait_interrupt(10**9)
    assert bench.get(reg.STATUS) == reg.JobState.DONE
    bench.acknowledge()
    assert bench.run() == reg.JobState.DONE


def test_a_start_in_mid_job_fails_the_job(bench):
    bench.start()
    bench.set(reg.CTRL, 1)
    bench.card.wait_interrupt(10**9)
    assert bench.get(reg.STATUS) == reg.JobState.FAILED
    assert bench.error == (E.START_WHILE_BUSY, 0, 0)
    assert bench.untouched()
    assert bench.card.counters.jobs == 1


def test_reset_drops_a_hanging_job(small_design):
    bench = Bench(small_design, HangingEngine())
    bench.start()
    with pytest.raises(TimeoutError):
        bench.card.wait_interrupt(10**12)
    assert bench.get(reg.STATUS) == reg.JobState.RUNNING
    bench.set(reg.RESET, 0)
    assert bench.get(reg.STATUS) == reg.JobState.RUNNING
    bench.set(reg.RESET, 1)
    assert bench.get(reg.STATUS) == reg.JobState.IDLE
    assert bench.get(reg.CTRL) == reg.CTRL.mask("ap_idle")
    assert bench.get(reg.HEADS) == bench.get(reg.GIER) == 0
    assert bench.untouched()


def test_a_list_of_one_descriptor_ends_at_the_memory(bench):
    """The last bytes of the memory are usable: descriptor list against the end."""
    bench.list = bench.card.memory_base + (1 << 20) - DESCRIPTOR_BYTES
    bench.arguments[reg.DESCRIPTOR_ADDRESS] = bench.list
    bench.arguments[reg.BLOCK_COUNT] = 1
    bench.descriptors = bench.descriptors[:1]
    assert bench.run() == reg.JobState.DONE
