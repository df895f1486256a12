"""GPU rooflines and model sizes against published times, speeds and parameter counts.

The efficiencies of the rooflines come from the AttAcc simulator, the rates from data sheets; no constant was
chosen to meet a point below. Decode speeds of llama.cpp are means over a growing context and are compared at
its mean, n/2. Its A100 speed (73.8 tokens/s with Llama-2-7B, 63 % of the roofline) and its prefill (FP16
accumulation, attention that is not fused) are no bandwidth bounds and are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.model_shapes import model_names, named_model
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.roofline import ProcessorConfig, exact
from nearkv_sim.hardware.roofline_layers import SCORES, WEIGHTED_SUM, StepTime, decode_step
from nearkv_sim.validation.check import Check, at_most, within

ATTACC = "AttAcc simulator (Park et al., ASPLOS 2024): 8 GPUs with 40 HBM3 stacks, Lin 2048, GPU only"
LLAMA_CPP = "github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, llama.cpp, May 2024, Llama-3-8B F16"
ATTACC_GPUS, ATTACC_CONTEXT_TOKENS = 8, 2048
# (model, batch, ms of one decode step's attention over all layers)
ATTACC_POINTS = (
    ("gpt_175b", 1, 3.97),
    ("gpt_175b", 32, 15.87),
    ("gpt_175b", 54, 23.81),
    ("llama_65b", 32, 9.62),
)
ATTACC_TOLERANCE = 0.05  # its attention tables differ among themselves by up to 4 %
# GPU: tokens/s when n tokens are generated from an empty context
DECODE_POINTS = {
    "rtx_4090": ((512, 54.84), (1024, 54.34), (4096, 52.63), (8192, 50.88)),
    "rtx_4080": ((512, 40.58), (1024, 40.29), (4096, 39.44)),
    "rtx_3090": ((512, 47.40), (1024, 46.51), (4096, 44.79), (8192, 42.62)),
}
DECODE_TOLERANCE = 0.20  # another runtime, driver and board; the mean error has a bound of its own
DECODE_RMS_PERCENT = 10.0
GIB = 2**30


@dataclass(frozen=True)
class Decomposition:
    """Where the time of one point of AttAcc's GPU goes, in ms; the parts add up to ours.

    Attributes:
        model, batch: the point.
        published_ms: of the simulator.
        wire_ms: bytes at the memory's full bandwidth.
        efficiency_ms: what the bandwidth that is never reached adds.
        occupancy_ms: what multiprocessors without a head add.

    """

    model: str
    batch: int
    published_ms: float
    wire_ms: float
    efficiency_ms: float
    occupancy_ms: float

    @property
    def ours_ms(self) -> float:
        """Sum of the parts."""
        return self.wire_ms + self.efficiency_ms + self.occupancy_ms


def checks() -> list[Check]:
    """Every published figure of this area."""
    found = [
        within(
            f"compute/attacc_{model}/{batch}",
            "ms",
            published_ms,
            ATTACC_TOLERANCE,
            ATTACC,
            partial(_attacc_ms, model, batch),
        )
        for model, batch, published_ms in ATTACC_POINTS
    ]
    for gpu, points in DECODE_POINTS.items():
        found += [
            within(
                f"compute/decode_{gpu}/{tokens}",
                "tokens/s",
                published,
                DECODE_TOLERANCE,
                LLAMA_CPP,
                partial(_decode, gpu, tokens),
            )
            for tokens, published in points
        ]
    found.append(
        at_most(
            "compute/decode_error_rms", "%", DECODE_RMS_PERCENT, "bound of this project", _decode_rms_percent
        )
    )
    for name in model_names():
        profile = named_model(name)
        found.append(
            within(
                f"compute/parameters/{name}",
                "10^9",
                profile.config.published_parameters / 1e9,
                0.01,
                profile.sources["published_parameters"],
                partial(_parameters, name),
            )
        )
    for name, context, batch, published_gib, source in (
        ("qwen_7b", 32768, 1, 16.0, "article on HillInfer (arXiv 2602.18750): 7B, 32K tokens, FP16"),
        ("opt_175b", 2048, 256, 2304.0, "article on PAM (arXiv 2602.11521): 256 sequences of 2048 tokens"),
    ):
        found.append(
            within(
                f"compute/kv_cache/{name}",
                "GiB",
                published_gib,
                0.0,
                source,
                partial(_kv_gib, name, context, batch),
            )
        )
    return found


def decompositions() -> list[Decomposition]:
    """AttAcc's GPU times taken apart."""
    found = []
    processor = _gpu("a100_hbm3")
    for model, batch, published_ms in ATTACC_POINTS:
        ours_ms = _attacc_ms(model, batch)
        kernels = [time.kernel for time in _attacc_step(model, batch).kernels]
        nbytes = sum(kernel.nbytes for kernel in kernels if kernel.name in (SCORES, WEIGHTED_SUM))
        layers = named_model(model).config.layers
        wire_ms = 1e3 * layers * nbytes / processor.memory_bandwidth_bytes_per_s
        reached_ms = wire_ms / float(exact(processor.memory_efficiency))
        found.append(
            Decomposition(model, batch, published_ms, wire_ms, reached_ms - wire_ms, ours_ms - reached_ms)
        )
    return found


def _gpu(name: str) -> ProcessorConfig:
    config: ProcessorConfig = named_profile("gpu", name, ProcessorConfig).config
    return config


@cache
def _attacc_step(model: str, batch: int) -> StepTime:
    shape = named_model(model).config
    return decode_step(
        _gpu("a100_hbm3"),
        shape,
        ATTACC_CONTEXT_TOKENS,
        batch,
        processors=ATTACC_GPUS,
        split_context=False,
    )


def _attacc_ms(model: str, batch: int) -> float:
    step = _attacc_step(model, batch)
    return (step.of(SCORES) + step.of(WEIGHTED_SUM)) / 1e9


@cache
def _decode(gpu: str, tokens: int) -> float:
    """Tokens per second at the mean context of a generation of `tokens` tokens."""
    step = decode_step(_gpu(gpu), named_model("llama3_8b").config, tokens // 2, 1)
    return PS_PER_S / step.time_ps


def _parameters(name: str) -> float:
    return named_model(name).config.parameters / 1e9


def _kv_gib(name: str, context_tokens: int, batch: int) -> float:
    return named_model(name).config.kv_bytes(context_tokens, batch) / GIB


def _decode_rms_percent() -> float:
    errors: Sequence[float] = [
        _decode(gpu, tokens) / published - 1
        for gpu, points in DECODE_POINTS.items()
        for tokens, published in points
    ]
    return 100 * math.sqrt(sum(error**2 for error in errors) / len(errors))
