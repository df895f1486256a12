"""Rooflines: hand-computed kernels, occupancy, bounds, and what makes time move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.model_shapes import model_names, named_model
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.roofline import Kernel, ProcessorConfig, kernel_time
from nearkv_sim.hardware.roofline_layers import decode_step, prefill

SMALL = ProcessorConfig(
    peak_flops_per_s=1000,
    memory_bandwidth_bytes_per_s=100,
    multiprocessors=4,
    idle_power_w=0,
    compute_efficiency=0.5,
    memory_efficiency=0.8,
    norm_overhead_ps=3,
    activation_overhead_ps=5,
    pj_per_flop=1.0,
)
GPUS = ("rtx_4090", "h100_sxm", "a100_sxm")
LLAMA_13B = named_model("llama_13b").config


def gpu(name: str) -> ProcessorConfig:
    return named_profile("gpu", name, ProcessorConfig).config


def test_by_hand():
    """1000 operations at half of 1000/s: 2 s; 80 bytes at 0.8 of 100/s: 1 s."""
    time = kernel_time(SMALL, Kernel("k", 1000, 80, overhead_ps=7))
    assert (time.compute_ps, time.memory_ps, time.time_ps) == (2 * PS_PER_S, PS_PER_S, 2 * PS_PER_S + 7)
    assert time.bound == "compute"
    assert kernel_time(SMALL, Kernel("k", 10, 80)).bound == "memory"
    assert kernel_time(SMALL, Kernel("k", 0, 0, overhead_ps=1)).bound == "overhead"


@pytest.mark.parametrize(("blocks", "slowdown"), [(1, 4), (2, 2), (3, 4 / 3), (4, 1), (5, 8 / 5), (8, 1)])
def test_the_last_wave_leaves_processors_idle(blocks, slowdown):
    time = kernel_time(SMALL, Kernel("k", 0, 80, blocks))
    assert time.time_ps == pytest.approx(slowdown * PS_PER_S)


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_no_roof_is_exceeded(name, batch):
    processor = gpu(name)
    for step in (
        decode_step(processor, LLAMA_13B, 4096, batch),
        decode_step(processor, LLAMA_13B, 4096, batch, split_context=False),
        prefill(processor, LLAMA_13B, 512, batch),
    ):
        assert step.flops * PS_PER_S <= processor.peak_flops_per_s * step.time_ps
        assert step.nbytes * PS_PER_S <= processor.memory_bandwidth_bytes_per_s * step.time_ps


def test_decode_is_bandwidth_bound_and_prefill_compute_bound():
    decode = decode_step(gpu("rtx_4090"), LLAMA_13B, 2048, 1)
    assert {k.bound for k in decode.kernels if k.kernel.name in ("qkv", "attention")} == {"memory"}
    long = prefill(gpu("rtx_4090"), LLAMA_13B, 2048, 1)
    assert {k.bound for k in long.kernels if k.kernel.name in ("qkv", "attention")} == {"compute"}


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bandwidth_bytes_per_s": 504_000_000_000},
        {"memory_efficiency": 0.5},
        {"norm_overhead_ps": 9_000_000},
        {"activation_overhead_ps": 9_000_000},
    ],
)
def test_a_slower_processor_takes_longer(change):
    fast = decode_step(gpu("rtx_4090"), LLAMA_13B, 2048, 1).time_ps
    assert decode_step(replace(gpu("rtx_4090"), **change), LLAMA_13B, 2048, 1).time_ps > fast


def test_more_work_takes_longer():
    def time_ps(context, batch):
        return decode_step(gpu("h100_sxm"), LLAMA_13B, context, batch).time_ps

    assert time_ps(1024, 1) < time_ps(2048, 1) < time_ps(2048, 2)
    assert (
        prefill(gpu("h100_sxm"), LLAMA_13B, 512, 1).time_ps
        < prefill(gpu("h100_sxm"), LLAMA_13B, 1024, 1).time_ps
    )


def test_tensor_parallel_halves_weights_and_adds_exchanges():
    one = decode_step(gpu("h100_sxm"), LLAMA_13B, 2048, 4)
    two = decode_step(gpu("h100_sxm"), LLAMA_13B, 2048, 4, processors=2)
    assert two.of("qkv") == pytest.approx(one.of("qkv") / 2, rel=0.01)
    assert two.attention_ps == pytest.approx(one.attention_ps / 2, rel=0.01)
    hop_ps = 6_060_000 + 4 * 5120 // 2 * 2 / 450e9 * 1e12
    assert two.of("exchange") == pytest.approx(40 * 2 * 2 * hop_ps, rel=1e-6)


def test_grouped_queries_read_fewer_bytes():
    grouped = replace(LLAMA_13B, kv_heads=10)
    few = decode_step(gpu("rtx_4090"), grouped, 8192, 1).attention_ps
    many = decode_step(gpu("rtx_4090"), LLAMA_13B, 8192, 1).attention_ps
    assert many == pytest.approx(4 * few, rel=0.01)


def test_attention_can_be_left_out():
    whole = decode_step(gpu("rtx_4090"), LLAMA_13B, 2048, 1)
    rest = decode_step(gpu("rtx_4090"), LLAMA_13B, 2048, 1, attention=False)
    assert rest.attention_ps == 0
    assert rest.time_ps == whole.time_ps - whole.attention_ps


@pytest.mark.parametrize("name", model_names())
def test_models_have_the_parameters_they_were_published_with(name):
    shape = named_model(name).config
    assert shape.parameters == pytest.approx(shape.published_parameters, rel=0.01)


def test_kv_bytes_by_hand():
    """2 · 32 layers · 32K tokens · 4096 channels · 2 B = 16 GiB."""
    assert named_model("qwen_7b").config.kv_bytes(32768, 1) == 16 * 2**30
    assert named_model("opt_175b").config.kv_bytes(2048, 256) == 2304 * 2**30


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernel_time(SMALL, Kernel("k", -1, 0)), "allowed: work from 0"),
        (lambda: kernel_time(SMALL, Kernel("k", 1, 0, 0)), "blocks of kernel k is 0"),
        (lambda: decode_step(SMALL, LLAMA_13B, 0, 1), "context is 0"),
        (lambda: decode_step(SMALL, LLAMA_13B, 1, True), "batch is True"),
        (lambda: decode_step(SMALL, LLAMA_13B, 1, 1, processors=7), "processors is 7; allowed: divisors"),
        (lambda: decode_step(SMALL, LLAMA_13B, 1, 1, processors=2), "no interconnect"),
        (lambda: replace(SMALL, compute_efficiency=1.5), "compute_efficiency is 1.5"),
        (lambda: replace(SMALL, hop_latency_ps=-1), "hop_latency_ps is -1; allowed: from 0"),
        (lambda: replace(SMALL, interconnect_bytes_per_s=-1), "interconnect_bytes_per_s is -1"),
        (lambda: replace(SMALL, multiprocessors=0), "multiprocessors is 0"),
        (lambda: replace(SMALL, norm_overhead_ps=-1), "norm_overhead_ps is -1"),
        (lambda: replace(LLAMA_13B, kv_heads=7), "kv_heads is 7; allowed: a divisor of 40"),
        (lambda: replace(LLAMA_13B, dtype="fp4"), "dtype is 'fp4'; allowed: fp32, fp16"),
        (lambda: replace(LLAMA_13B, ffn_matrices=4), "ffn_matrices is 4"),
        (lambda: named_model("llama_14b"), "model profile is 'llama_14b'; allowed: gpt_175b"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
