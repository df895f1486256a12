"""Machines against what their articles and pcie-bench say of their parts."""

from __future__ import annotations

from functools import partial

from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.validation.check import Check, within

HILLINFER = "HillInfer (arXiv 2602.18750)"
PAM = "PAM (arXiv 2602.11521), table of units and set-up"
PCIE_BENCH = "Neugebauer et al., SIGCOMM 2018 (pcie-bench model), up to the header-only bound"
LONG_BYTES = 128 << 20
GB = 1e9


def checks() -> list[Check]:
    """Every published figure of this area."""
    found = [
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
    # Between the pcie-bench model and headers alone; 256-byte payloads.
    for machine, source, target, low, high in (
        ("hillinfer", "host_memory", "gpu_memory", 26.4, 29.3),
        ("hillinfer", "gpu_memory", "host_memory", 26.0, 28.9),
        ("hillinfer", "host_memory", "card_memory", 3.37, 3.66),
        ("hillinfer", "card_memory", "host_memory", 3.32, 3.61),
        ("hillinfer_u50", "host_memory", "card_memory", 13.18, 14.65),
        ("hillinfer_u50", "card_memory", "host_memory", 12.99, 14.45),
    ):
        found.append(
            Check(
                f"machines/{machine}/{source}_to_{target}",
                "GB/s",
                low,
                low,
                high,
                PCIE_BENCH,
                partial(_transfer_gb_per_s, machine, source, target),
            )
        )
    for unit, count, published_tflops in (
        ("hbm_units", 40, 1.6),
        ("ddr_units", 40, 0.204),
        ("ssd_units", 8, 0.018),
    ):
        # One operation per byte of FP16 keys and values: TFLOPS are TB/s.
        found.append(
            within(
                f"machines/pam/{unit}",
                "TB/s",
                published_tflops,
                0.05,
                f"{PAM}: device compute under the power cap, one operation per byte",
                partial(_device_tb_per_s, unit, count),
                held_out=False,  # the cap is in the profile; what is checked is that nothing else is slower
            )
        )
    return found


def _scan_gb_per_s(processor: str) -> float:
    return open_machine("hillinfer").scan(processor, LONG_BYTES).bytes_per_s / GB


def _scorer_gb_per_s() -> float:
    """The scorer's own rate, whatever its memory gives."""
    unit = open_machine("hillinfer").unit("fpga")
    return LONG_BYTES * 1e12 / unit.scan_ps(LONG_BYTES)["fpga"] / GB


def _device_tb_per_s(unit: str, devices: int) -> float:
    return open_machine("pam").scan(unit, devices * LONG_BYTES).bytes_per_s / devices / 1e12


def _transfer_gb_per_s(machine: str, source: str, target: str) -> float:
    return open_machine(machine).transfer(source, target, LONG_BYTES).bytes_per_s / GB
