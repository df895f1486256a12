"""What the articles say about links, drives and memories, on the hardware models."""

from __future__ import annotations

from nearkv.claims.claim import HILLINFER, PAM, ClaimInputs, Finding, PublishedClaim, Verdict, unmeasured
from nearkv_hdl.spec.layout import FP16_BYTES
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.pim.config import LEVELS
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.workloads import random_read
from nearkv_sim.validation.claims import Claim
from nearkv_sim.validation.claims import claims as share_claims
from nearkv_sim.validation.dram import peak_gb_per_s
from nearkv_sim.validation.pim import attacc, capped_cycles

GB, PS_PER_US = 1e9, 1e6
LONG_TRANSFER_BYTES, SCAN_BYTES = 1 << 28, 1 << 24
RANDOM_READS = 200
_HILL, _PAM = "article on HillInfer", "article on PAM"


def claims() -> list[PublishedClaim]:
    """The figures of this module."""
    return [
        *(_share(claim) for claim in share_claims()),
        _rate("hillinfer/pcie_gen4_x16", _HILL, "PCIe 4.0 ×16 carries 32 GB/s before protocol overhead", 32,
              "hillinfer", "host_memory", "gpu_memory", "theory; ours is what a read gets, with headers"),
        _rate("hillinfer/smartssd_3_2", _HILL, "a SmartSSD's peak bandwidth over PCIe 3.0 ×4", 3.2,
              "hillinfer", "nand", "host_memory", "to the host; from flash to the FPGA, the next row"),
        _rate("hillinfer/smartssd_p2p", _HILL, "the same from flash to the FPGA (peer-to-peer)", 3.2,
              "hillinfer", "nand", "card_memory",
              "asynchronous; synchronous calls of 256 KiB get .94 (docs/hardware-ssd.md)"),
        PublishedClaim(
            "hillinfer/random_4k", _HILL, "latency of a random 4 KiB read of an SSD", "≈ 80 µs",
            "nearkv validate --area ssd", _random_4k,
        ),
        _scan("hillinfer/cpu_120", _HILL, "a Xeon 8352V scores 120 GB/s of keys", 120, "hillinfer", "cpu"),
        _scan("hillinfer/fpga_3_2", _HILL, "a SmartSSD scores 3.2 GB/s of keys", 3.2, "hillinfer", "fpga"),
        PublishedClaim(
            "pam/hbm_pim_2_tb", _PAM, "bandwidth of an HBM-PIM with units near the banks", "≈ 2 TB/s",
            "nearkv claims pam/hbm_pim_2_tb", _hbm_pim,
        ),
        PublishedClaim(
            "pam/ddr_pim_200", _PAM, "bandwidth of DDR-PIM on four channels of DDR5", "≈ 200 GB/s",
            "nearkv validate --area dram", _ddr5,
        ),
        PublishedClaim(
            "pam/migration_20x", PAM, "its migration interface is 20 times as fast as the CPU path",
            "> 20×", "–",
            unmeasured("the CPU path's rate is not published; our engine fills 93 % of the narrower bus"),
        ),
    ]  # fmt: skip


def _share(claim: Claim) -> PublishedClaim:
    """A share of time or memory: `nearkv machine NAME --shares` shows the same."""
    article = "hillinfer" if HILLINFER in claim.source or "HillInfer" in claim.source else "pam"
    theirs = f"{claim.low:g}–{claim.high:g} %"

    def measure(_inputs: ClaimInputs) -> Finding:
        ours = claim.ours
        verdict = Verdict.HOLDS if claim.low <= ours <= claim.high else Verdict.DIFFERS
        return Finding(f"{ours:.1f} %", verdict, claim.workload)

    command = f"nearkv machine {claim.machine} --shares"
    return PublishedClaim(f"{article}/{claim.name}", claim.source, claim.statement, theirs, command, measure)


def _rate(
    name: str, source: str, statement: str, theirs: float, machine: str, start: str, end: str, note: str
) -> PublishedClaim:
    def measure(_inputs: ClaimInputs) -> Finding:
        ours = open_machine(machine).transfer(start, end, LONG_TRANSFER_BYTES).bytes_per_s / GB
        return _gb_per_s(ours, theirs, note)

    return PublishedClaim(name, source, statement, f"{theirs:g} GB/s", f"nearkv machine {machine}", measure)


def _scan(
    name: str, source: str, statement: str, theirs: float, machine: str, processor: str
) -> PublishedClaim:
    def measure(_inputs: ClaimInputs) -> Finding:
        timing = open_machine(machine).scan(processor, SCAN_BYTES)
        return _gb_per_s(timing.bytes_per_s / GB, theirs, f"from its own memory; busiest: {timing.why}")

    return PublishedClaim(name, source, statement, f"{theirs:g} GB/s", f"nearkv machine {machine}", measure)


def _gb_per_s(ours: float, theirs: float, note: str) -> Finding:
    verdict = Verdict.HOLDS if abs(ours / theirs - 1) < 0.15 else Verdict.DIFFERS
    return Finding(f"{ours:.3g} GB/s", verdict, note)


def _hbm_pim(_inputs: ClaimInputs) -> Finding:
    tokens, heads, head_dim = 2048, 64, 128  # a layer of AttAcc's table
    nbytes = 2 * tokens * heads * head_dim * FP16_BYTES
    rate = {}
    for level in LEVELS:
        cycles = capped_cycles(level, tokens, heads, as_published=True)
        rate[level] = nbytes / attacc(level).dram_config.to_ps(cycles)  # bytes per picosecond: TB/s
    nearest = min(rate, key=lambda level: abs(rate[level] - 2))
    return Finding(
        ", ".join(f"{level.replace('_', ' ')} {value:.1f} TB/s" for level, value in rate.items()),
        Verdict.PARTLY if nearest != "bank" else Verdict.HOLDS,
        f"one stack, one layer of 64 heads, power cap; the figure is that of units per {nearest}",
    )


def _ddr5(_inputs: ClaimInputs) -> Finding:
    ours = peak_gb_per_s("ddr5_4800", 8)
    return Finding(
        f"{ours:.0f} GB/s at 4,800 MT/s",
        Verdict.HOLDS if abs(ours / 200 - 1) < 0.05 else Verdict.DIFFERS,
        "peak of the pins; 200 GB/s need 6,400 MT/s",
    )


def _random_4k(_inputs: ClaimInputs) -> Finding:
    config = named_profile("ssd", "pm983", SsdConfig).config
    ours = random_read(config, 1, RANDOM_READS).mean_latency_ps / PS_PER_US
    verdict = Verdict.HOLDS if abs(ours / 80 - 1) < 0.15 else Verdict.DIFFERS
    return Finding(f"{ours:.0f} µs", verdict, "PM983 at queue depth 1; its data sheet says 85 µs")
