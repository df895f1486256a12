"""What the articles say about sizes and prices: arithmetic that can be done again."""

from __future__ import annotations

from nearkv.claims.claim import ClaimInputs, Finding, PublishedClaim, Verdict, unmeasured
from nearkv.machine import TierKind
from nearkv_hdl.spec.designs import KU15P
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.model_shapes import named_model

GIB, GB = 1 << 30, 10**9
_HILL, _PAM = "article on HillInfer", "article on PAM"


def claims() -> list[PublishedClaim]:
    """The figures of this module."""
    prices = "prices and power of servers are no property of a model: they were taken over, not measured"
    return [
        PublishedClaim(
            "hillinfer/kv_16_gb", _HILL, "KV cache of a 7B LLaMA at 32K tokens in FP16", "≈ 16 GB",
            "nearkv size llama2_7b --context 32768", lambda _: _kv("llama2_7b", 32768, 1, 16, GIB, "GiB"),
        ),
        PublishedClaim(
            "pam/kv_2304_gb", _PAM, "KV cache of OPT-175B, 256 requests of 2,048 tokens", "≈ 2304 GB",
            "nearkv size opt_175b --context 2048 --batch 256",
            lambda _: _kv("opt_175b", 2048, 256, 2304, GIB, "GiB"),
        ),
        PublishedClaim(
            "hillinfer/fpga_luts", _HILL, "LUTs of the SmartSSD's FPGA", "≈ 900K",
            "nearkv claims hillinfer/fpga_luts", _luts,
        ),
        PublishedClaim(
            "hillinfer/smartssd_capacity", _HILL, "memory and flash of a SmartSSD", "4 GB, 4 TB",
            "nearkv machine hillinfer", _capacity,
        ),
        PublishedClaim(
            "pam/cost_450k", _PAM, "three PAM servers instead of eight DGX H100", "−77 %, −68 % power",
            "–", unmeasured(prices),
        ),
        PublishedClaim(
            "pam/ddr_pim_cost", _PAM, "a DDR-PIM costs a fifth of an HBM-PIM", "1/5", "–", unmeasured(prices)
        ),
        PublishedClaim(
            "pam/deployment", _PAM, "200 requests per second on three servers (70 % chats, 30 % documents)",
            "200 / s", "nearkv machine pam_deployment",
            unmeasured("request-level serving (queues, arrivals, SLOs) is not simulated yet"),
        ),
    ]  # fmt: skip


def _kv(model: str, context: int, batch: int, theirs: int, unit_bytes: int, unit: str) -> Finding:
    ours = named_model(model).config.kv_bytes(context, batch) / unit_bytes
    return Finding(
        f"{ours:g} {unit}",
        Verdict.HOLDS if round(ours) == theirs else Verdict.DIFFERS,
        "exact, in binary units",
    )


def _luts(_inputs: ClaimInputs) -> Finding:
    return Finding(
        f"{KU15P.luts:,}",
        Verdict.HOLDS if abs(KU15P.luts / 900_000 - 1) < 0.1 else Verdict.DIFFERS,
        f"{KU15P.part} (AMD DS922); 60 % of it after the shell is what a design may plan with",
    )


def _capacity(_inputs: ClaimInputs) -> Finding:
    tiers = {tier.kind: tier.capacity_bytes for tier in open_machine("hillinfer").description.tiers}
    memory, flash = tiers[TierKind.CARD_MEMORY], tiers[TierKind.DRIVE]
    same = memory == 4 * GIB and abs(flash / (4000 * GB) - 1) < 0.05
    return Finding(
        f"{memory / GIB:g} GiB, {flash / GB / 1000:g} TB",
        Verdict.HOLDS if same else Verdict.DIFFERS,
        "capacity for users; data sheet",
    )
