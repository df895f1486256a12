"""What the articles claim about shares of time and memory, computed on the described machines.

A claim is no check: it says something about a workload that its article leaves open, so one that does not
hold here is reported and fails nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.machine_step import decode_time
from nearkv_sim.hardware.machine_units import RooflineUnit
from nearkv_sim.hardware.model_shapes import named_model
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.roofline import ProcessorConfig
from nearkv_sim.hardware.roofline_layers import decode_step

HILLINFER = "article on HillInfer (arXiv 2602.18750)"
PAM = "article on PAM (arXiv 2602.11521)"
LONG_CONTEXT_TOKENS = 36_000  # LongBench prompts of HillInfer's evaluation
OPT_CONTEXT_TOKENS, OPT_BATCH = 2048, 256  # the example of the article on PAM
_REDUCTION_TOKENS, _REDUCTION_HEADS = (2048, 32768), 8
_MERGES = {Merge.EXACT: "our exact merge", Merge.EXPONENTIAL: "the paper's merge"}


@dataclass(frozen=True)
class Claim:
    """A published share and ours, in percent.

    Attributes:
        name: unique.
        machine: machine that it is computed on.
        statement: what is claimed.
        low, high: range that is claimed.
        workload: what ours holds for.
        source: who claims it.
        measure: computes ours.

    """

    name: str
    machine: str
    statement: str
    low: float
    high: float
    workload: str
    source: str
    measure: Callable[[], float]

    @property
    def ours(self) -> float:
        """Computed each time it is asked for."""
        return self.measure()


def claims() -> tuple[Claim, ...]:
    """Every claim."""
    host = "LLaMA-13B, 36,000 tokens, batch 1, KV in host memory, all of it moved to the GPU"
    drive = "LLaMA-13B, 36,000 tokens, batch 4, KV in host memory and SSD, all of it moved to the GPU"
    # Side by side the links are busy for over 95 % of a step; the article does not say what it divides by.
    serial = "; busy time of all links over that of all resources, as if none worked beside another"
    opt = "OPT-175B, 256 sequences of 2048 tokens"
    return (
        Claim("pcie_share/host", "hillinfer", "PCIe takes over 60 % of the latency", 60, 100, host + serial,
              HILLINFER, partial(_pcie_share, 1)),
        Claim("pcie_share/drive", "hillinfer", "PCIe takes over 60 % of the latency", 60, 100,
              drive + serial, HILLINFER, partial(_pcie_share, 4)),
        Claim("scoring_share", "hillinfer", "scoring takes 15 to 20 % of the CPU", 15, 20,
              f"{host}; the CPU scores every key once per step; its time over that of the step",
              HILLINFER, _scoring_share),
        Claim("kv_memory_share", "dgx_h100", "KV takes over 95 % of the memory", 95, 100, opt, PAM,
              _kv_share),
        Claim("attention_share/offloading", "dgx_h100", "attention takes over 80 % of the time", 80, 100,
              f"{opt}, KV that does not fit in HBM is moved to the GPUs", PAM, _attention_share),
        Claim("attention_share/hbm", "dgx_h100", "attention takes over 80 % of the time", 80, 100,
              f"{opt}, as if the HBM held all of it", PAM, _attention_share_in_hbm),
        *(
            Claim(f"reduction_share/{merge.name.lower()}/{tokens}", "pam",
                  "reduction takes less than 2 % of attention", 0, 2,
                  f"{_MERGES[merge]} in one HBM-PIM, {_REDUCTION_HEADS} heads of {tokens} tokens each; cycles"
                  " that it adds to our units'", PAM, partial(_reduction_share, merge, tokens))
            for merge in Merge
            for tokens in _REDUCTION_TOKENS
        ),
    )  # fmt: skip


def claims_about(machine: str) -> tuple[Claim, ...]:
    """Claims computed on one machine."""
    return tuple(claim for claim in claims() if claim.machine == machine)


def record(claim: Claim) -> dict[str, Any]:
    """A claim as plain data."""
    ours = claim.ours
    return {
        "name": claim.name,
        "machine": claim.machine,
        "statement": claim.statement,
        "theirs_percent": [claim.low, claim.high],
        "ours_percent": ours,
        "holds": claim.low <= ours <= claim.high,
        "workload": claim.workload,
        "source": claim.source,
    }


def claims_table(selected: Sequence[Claim]) -> str:
    """Claims for a terminal, one per line: verdict, ours, statement, workload, source."""
    lines = ["published claims, reported only: none of them is a tolerance"]
    for entry in map(record, selected):
        verdict = "holds        " if entry["holds"] else "does not hold"
        lines.append(
            f"  {verdict}  ours {entry['ours_percent']:6.2f} %  {entry['statement']}"
            f"  ({entry['workload']}; on {entry['machine']}; {entry['source']})"
        )
    return "\n".join(lines)


def _pcie_share(batch: int) -> float:
    shape = named_model("llama_13b").config
    step = decode_time(open_machine("hillinfer"), shape, LONG_CONTEXT_TOKENS, batch, near_data=False)
    return 100 * step.link_ps / step.serial_ps


def _scoring_share() -> float:
    """Half of the KV cache, read by the CPU, against the step of the offloading baseline."""
    machine, shape = open_machine("hillinfer"), named_model("llama_13b").config
    step = decode_time(machine, shape, LONG_CONTEXT_TOKENS, 1, near_data=False)
    scan = machine.scan("cpu", shape.kv_bytes(LONG_CONTEXT_TOKENS, 1) // 2)
    return 100 * scan.time_ps / step.time_ps


def _kv_share() -> float:
    shape = named_model("opt_175b").config
    kv_bytes = shape.kv_bytes(OPT_CONTEXT_TOKENS, OPT_BATCH)
    return 100 * kv_bytes / (kv_bytes + shape.weight_bytes)


def _attention_share() -> float:
    machine, shape = open_machine("dgx_h100"), named_model("opt_175b").config
    step = decode_time(machine, shape, OPT_CONTEXT_TOKENS, OPT_BATCH)
    return 100 * step.attention.timing.time_ps / step.time_ps


def _attention_share_in_hbm() -> float:
    gpu = named_profile("gpu", "h100_sxm", ProcessorConfig).config
    unit = open_machine("dgx_h100").unit("gpus")
    if not isinstance(unit, RooflineUnit):
        raise AssertionError("gpus of dgx_h100 are no GPUs")
    shape = named_model("opt_175b").config
    step = decode_step(gpu, shape, OPT_CONTEXT_TOKENS, OPT_BATCH, processors=unit.count)
    return 100 * step.attention_ps / step.time_ps


def _reduction_share(merge: Merge, tokens: int) -> float:
    timing = attention_timing(get_pim_design("hbm_pim"), tokens, _REDUCTION_HEADS, merge)
    return 100 * timing.exposed_share
