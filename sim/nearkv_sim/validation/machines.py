"""Machines against what their articles and pcie-bench say of their parts."""

from __future__ import annotations

from functools import partial

from nearkv_sim.hardware.link import Direction, header_only_bytes_per_s
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.validation.check import Check, within

HILLINFER = "HillInfer (arXiv 2602.18750)"
PAM = "PAM (arXiv 2602.11521), table of units and set-up"
PCIE_BENCH = "Neugebauer et al., SIGCOMM 2018 (pcie-bench model), up to the header-only bound"
LONG_BYTES = 128 << 20
GB = 1e9
# Machine, its link, from, to, as the outer device sees it, GB/s of the pcie-bench model (256-byte payloads).
LINKS = (
    ("hillinfer", "gpu_link", "host_memory", "gpu_memory", Direction.IN, 26.4),
    ("hillinfer", "gpu_link", "gpu_memory", "host_memory", Direction.OUT, 26.0),
    ("hillinfer", "smartssd_link", "host_memory", "card_memory", Direction.IN, 3.37),
    ("hillinfer", "smartssd_link", "card_memory", "host_memory", Direction.OUT, 3.32),
    ("hillinfer_u50", "card_link", "host_memory", "card_memory", Direction.IN, 13.18),
    ("hillinfer_u50", "card_link", "card_memory", "host_memory", Direction.OUT, 12.99),
)


def checks() -> list[Check]:
    """Every published figure of this area."""
    return [*_hillinfer(), *_links(), *_pam_units()]


def _hillinfer() -> list[Check]:
    return [
        within(
            "machines/hillinfer/cpu_scan",
            "GB/s",
            120.0,
            0.01,
            f"{HILLINFER}: KV processing rate of the CPU",
            partial(_scan_gb_per_s, "cpu"),
            held_out=False,  # the profile's efficiency is this figure over the memory's bandwidth
        ),
        within(
            "machines/hillinfer/fpga_scorer",
            "GB/s",
            19.2,
            0.01,
            "DDR4-2400 of the SmartSSD at its pins, which the scorer is to keep up with (JEDEC JESD79-4)",
            _scorer_gb_per_s,
            held_out=False,  # it chose the design's lanes and clock
        ),
        Check(
            "machines/hillinfer/fpga_scan",
            "GB/s",
            19.2,
            0.9 * 19.2,
            19.2,
            "JEDEC JESD79-4: DDR4-2400 on 64 bits less refreshes",
            partial(_scan_gb_per_s, "fpga"),
        ),
    ]


def _links() -> list[Check]:
    return [
        Check(
            f"machines/{machine}/{source}_to_{target}",
            "GB/s",
            published,
            published,
            _header_only_gb_per_s(machine, link, way),
            PCIE_BENCH,
            partial(_transfer_gb_per_s, machine, source, target),
        )
        for machine, link, source, target, way, published in LINKS
    ]


def _pam_units() -> list[Check]:
    # One operation per byte of FP16 keys and values: TFLOPS are TB/s.
    return [
        within(
            f"machines/pam/{unit}",
            "TB/s",
            published_tflops,
            0.05,
            f"{PAM}: device compute under the power cap, one operation per byte",
            partial(_device_tb_per_s, unit, count),
            held_out=False,  # the cap is in the profile; what is checked is that nothing else is slower
        )
        for unit, count, published_tflops in (
            ("hbm_units", 40, 1.6),
            ("ddr_units", 40, 0.204),
            ("ssd_units", 8, 0.018),
        )
    ]


def _scan_gb_per_s(processor: str) -> float:
    return open_machine("hillinfer").scan(processor, LONG_BYTES).bytes_per_s / GB


def _scorer_gb_per_s() -> float:
    """The scorer's own rate, whatever its memory gives."""
    unit = open_machine("hillinfer").unit("fpga")
    return LONG_BYTES * 1e12 / unit.scan_ps(LONG_BYTES)["fpga"] / GB


def _device_tb_per_s(unit: str, devices: int) -> float:
    return open_machine("pam").scan(unit, devices * LONG_BYTES).bytes_per_s / devices / 1e12


def _header_only_gb_per_s(machine: str, link: str, way: Direction) -> float:
    config = PRESETS[open_machine(machine).paths[link].pcie_preset]
    return header_only_bytes_per_s(config, way, config.max_payload_bytes) / GB


def _transfer_gb_per_s(machine: str, source: str, target: str) -> float:
    return open_machine(machine).transfer(source, target, LONG_BYTES).bytes_per_s / GB
