"""Job control: a good job's result, the handshake around it, and when its end is seen."""

import numpy as np
import pytest
from amaranth.lib.crc.catalog import CRC32_ISCSI

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, KeyFormat
from nearkv_sim.card.kernel_cycles import READ_LATENCY_PS, reading_cycles, writing_cycles
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.hardware.pcie import PRESETS


def test_a_good_job_writes_its_result_and_nothing_else(bench):
    assert bench.run() == reg.JobState.DONE
    memory = bench.card.read_memory(bench.result - 64, bench.result_bytes + 128)
    assert (memory[:64] == bench.guard).all()
    assert (memory[-64:] == bench.guard).all()
    scores = memory[64:-64].view("<i4").reshape(-1, bench.heads)
    for block, descriptor in enumerate(bench.descriptors):
        planes = bench.card.read_memory(descriptor.key_address, bench.block_bytes)
        nibbles = np.stack([planes & 15, planes >> 4], axis=1).reshape(2, -1).astype(np.int64)
        high = (nibbles[0] ^ 8) - 8
        codes = 16 * high + (nibbles[1] if descriptor.key_format is KeyFormat.INT8 else 0)
        dots = codes.reshape(-1, bench.head_dim) @ bench.codes[block].T.astype(np.int64)
        tokens = bench.design.block_tokens
        expected = np.array([7, -9]) + dots * np.array([1, 8])
        assert np.array_equal(scores[block * tokens : (block + 1) * tokens], expected)


def test_the_end_is_seen_when_its_cycles_have_passed(bench):
    bench.start()
    card = bench.card
    formats = tuple(d.key_format for d in bench.descriptors)
    cycles = job_cycles(bench.design, [bench.head_dim] * bench.blocks, formats)
    cycles += reading_cycles(bench.design, bench.head_dim, formats, bench.heads, READ_LATENCY_PS)
    cycles += writing_cycles(bench.design, bench.result_bytes)
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
    assert bench.get(reg.TOKENS) == bench.blocks * bench.design.block_tokens
    assert bench.get(reg.STREAMED_BYTES) == 5 * bench.block_bytes // 2
    assert bench.get(reg.WRITTEN_BYTES) == bench.result_bytes
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
    assert bench.error == (reg.ErrorCode.START_WHILE_BUSY, 0, 0)
    assert bench.untouched()
    assert bench.card.counters.jobs == 1


def test_reset_drops_a_hanging_job(hanging_bench):
    bench = hanging_bench
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


def test_crcs_are_of_what_is_in_memory(bench):
    for _ in range(2):  # the second job's blocks are known from the first
        bench.run()
        result = bench.card.read_memory(bench.result, bench.result_bytes)
        assert bench.get(reg.WRITTEN_CRC32C) == CRC32_ISCSI(8).compute(result.tolist())
        streamed = []
        for d in bench.descriptors:
            nbytes = bench.block_bytes >> (d.key_format is KeyFormat.INT4)
            streamed += bench.card.read_memory(d.key_address, nbytes).tolist()
        assert bench.get(reg.STREAMED_CRC32C) == CRC32_ISCSI(8).compute(streamed)
        bench.acknowledge()
        # A block that is written again has another CRC.
        bench.planes[0] ^= 1
        bench.write_blocks()


def test_results_go_where_the_arguments_pointed_at_the_start(bench):
    bench.start()
    bench.set(reg.RESULT_ADDRESS, bench.result + 64)
    bench.card.wait_interrupt(10**9)
    assert not bench.untouched()
    after = bench.card.read_memory(bench.result + bench.result_bytes, 64)
    assert (after == bench.guard).all()


def test_events_are_reported_once(bench):
    bench.run()
    assert reg.EVENTS.unpack(bench.get(reg.EVENTS)) == {"done": 1, "failed": 0}
    assert bench.get(reg.EVENTS) == 0
    bench.acknowledge()
    bench.arguments[reg.HEADS] = 0
    bench.run()
    assert reg.EVENTS.unpack(bench.get(reg.EVENTS)) == {"done": 0, "failed": 1}


def test_the_line_rises_when_a_pending_interrupt_is_enabled(bench):
    bench.set(reg.GIER, 0)
    bench.start()
    with pytest.raises(TimeoutError):
        bench.card.wait_interrupt(10**9)
    bench.set(reg.GIER, 1)
    bench.card.wait_interrupt(10**9)
    bench.set(reg.GIER, 1)
    with pytest.raises(TimeoutError):
        bench.card.wait_interrupt(10**9)
