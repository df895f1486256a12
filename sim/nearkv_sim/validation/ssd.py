"""Drives against published latencies, rates and the SmartSSD's peer-to-peer curves."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np

from nearkv_sim.hardware.pcie_fabric import PeerConfig
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.direct_io import HostIoConfig
from nearkv_sim.hardware.ssd.workloads import peer_transfer_ps, random_read, sequential
from nearkv_sim.validation.check import Check, at_most, within

__all__ = ["checks"]

_LOG = "p2p_bandwidth log on U.2 in Xilinx Vitis_Accel_Examples, whose GB/s are GiB/s (its host.cpp)"
_BOUND = "bound set for this project"
KIB = 1024
# GiB/s by KiB of one synchronous transfer.
_P2P_READ = {
    4: 0.05, 8: 0.17, 16: 0.31, 32: 0.54, 64: 0.87, 128: 1.21, 256: 1.55, 512: 1.37, 1024: 1.59, 2048: 1.99,
    4096: 2.15, 8192: 2.26, 16384: 2.28, 32768: 2.33, 65536: 2.35, 131072: 2.36,
}  # fmt: skip
_P2P_WRITE = {
    4: 0.16, 8: 0.25, 16: 0.37, 32: 0.50, 64: 0.68, 128: 0.82, 256: 0.92, 512: 0.96, 1024: 0.99, 2048: 1.00,
    4096: 1.02, 8192: 1.03, 16384: 1.03, 32768: 1.04, 65536: 1.04, 131072: 1.04,
}  # fmt: skip
# Points that chose a constant of the profiles: the call (8 KiB, both), the read buffer (4, 256, 512 KiB), the
# page (256 KiB) and the two rates of the peer (128 MiB).
_CALIBRATED = {"read": {4, 8, 256, 512, 131072}, "write": {8, 131072}}
_MQSIM_US = {"ideal_map": {1: 88.0, 16: 119.0, 64: 279.0}, "mapping_cache": {1: 165.0, 16: 218.0, 64: 471.0}}


def checks() -> list[Check]:
    """All figures of drives."""
    return [*_mqsim(), *_data_sheets(), *_peer("read", _P2P_READ), *_peer("write", _P2P_WRITE)]


def _config(name: str) -> SsdConfig:
    config: SsdConfig = named_profile("ssd", name, SsdConfig).config
    return config


def _mqsim() -> list[Check]:
    source = "measured for nearkv with MQSim, sample configuration"
    return [
        within(
            f"ssd/mqsim_{curve}/QD{depth}", "us", published, 0.15, source, partial(_mqsim_us, curve, depth)
        )
        for curve, points in _MQSIM_US.items()
        for depth, published in points.items()
    ]


def _mqsim_us(curve: str, depth: int) -> float:
    config = _config("mqsim")
    if curve == "ideal_map":
        config = replace(config, mapping_cache_bytes=0)
    return random_read(config, depth, 200 + 100 * depth, interrupts=False).mean_latency_ps / 1e6


def _data_sheets() -> list[Check]:
    pm983, p5336 = "Samsung PM983 data sheet, 3.84 TB", "Solidigm D5-P5336 data sheet, 30.72 TB"
    virt = "NVMeVirt ssd_config.h, SAMSUNG_970PRO: PCIE_BANDWIDTH"
    return [
        within("ssd/pm983_random_read/QD1", "us", 85.0, 0.15, pm983, lambda: _random("pm983", 1, 200) / 1e6),
        within(
            "ssd/pm983_random_read/QD256", "1/s", 540e3, 0.15, pm983,
            lambda: random_read(_config("pm983"), 256, 12_000).commands_per_s, held_out=False,
        ),
        within("ssd/pm983_sequential/read", "MB/s", 3200.0, 0.15, pm983, lambda: _mb_per_s("pm983", False)),
        within(
            "ssd/pm983_sequential/write", "MB/s", 2000.0, 0.15, pm983,
            lambda: _mb_per_s("pm983", True), held_out=False,
        ),
        within("ssd/970pro_sequential/read", "MB/s", 3360.0, 0.15, virt, lambda: _mb_per_s("970pro", False)),
        within("ssd/p5336_sequential/read", "MB/s", 7000.0, 0.15, p5336, lambda: _mb_per_s("p5336", False)),
        within(
            "ssd/p5336_sequential/write", "MB/s", 3300.0, 0.15, p5336,
            lambda: _mb_per_s("p5336", True), held_out=False,
        ),
        within(
            "ssd/p5336_random_read/QD256", "1/s", 1e6, 0.15, f"{p5336} (recalled, unconfirmed)",
            lambda: random_read(_config("p5336"), 256, 8_000).commands_per_s, held_out=False,
        ),
    ]  # fmt: skip


def _random(name: str, depth: int, commands: int) -> float:
    return random_read(_config(name), depth, commands).mean_latency_ps


def _mb_per_s(name: str, write: bool) -> float:
    return sequential(_config(name), 32, 4000, nbytes=128 * KIB, write=write).bytes_per_s / 1e6


def _peer(way: str, published: dict[int, float]) -> list[Check]:
    curve = f"ssd/smartssd_p2p_{way}"
    points = [
        within(
            f"{curve}/{_size(kib)}", "GiB/s", rate, 0.15, _LOG, partial(_gib_per_s, way, kib),
            held_out=kib not in _CALIBRATED[way],
        )
        for kib, rate in published.items()
    ]  # fmt: skip
    return [
        *points,
        at_most(
            f"{curve}/log-rms 8KiB-128MiB", "%", 12.0, _BOUND, partial(_curve_error, way, published),
            held_out=False,  # the calibrated points are among them
        ),
        at_most(f"{curve}/log-rms leave-one-out", "%", 12.0, _BOUND, partial(_leave_one_out, way, published)),
    ]  # fmt: skip


def _size(kib: int) -> str:
    return f"{kib}KiB" if kib < KIB else f"{kib // KIB}MiB"


def _gib_per_s(way: str, kib: int) -> float:
    return kib * KIB / (_transfer_ps(way, kib, *_constants(way)) * 1e-12) / 2**30


def _constants(way: str) -> tuple[int, int, int]:
    """The constants that the curves calibrated: call, page (ps), and the peer's rate (bytes/s)."""
    host = named_profile("host_io", "linux_p2p", HostIoConfig).config
    peer = named_profile("peer", "smartssd", PeerConfig).config
    rate = peer.target_read_bytes_per_s if way == "write" else peer.target_write_bytes_per_s
    return host.call_ps, host.page_ps, rate


@cache
def _transfer_ps(way: str, kib: int, call_ps: int, page_ps: int, bytes_per_s: int) -> int:
    peer = named_profile("peer", "smartssd", PeerConfig).config
    if way == "write":
        peer = replace(peer, target_read_bytes_per_s=bytes_per_s)
    else:
        peer = replace(peer, target_write_bytes_per_s=bytes_per_s)
    host = HostIoConfig(call_ps=call_ps, page_ps=page_ps)
    return peer_transfer_ps(_config("pm983"), peer, host, kib * KIB, write=way == "write")


def _log_rms_percent(log_errors: list[float]) -> float:
    return 100 * math.sqrt(sum(error**2 for error in log_errors) / len(log_errors))


def _curve_error(way: str, published: dict[int, float]) -> float:
    return _log_rms_percent(
        [math.log(_gib_per_s(way, kib) / rate) for kib, rate in published.items() if kib >= 8]
    )


def _leave_one_out(way: str, published: dict[int, float]) -> float:
    """Log-rms error, in percent, of points that had no part in choosing the three constants.

    For each point the constants are fitted anew to all others, by least squares on the relative error, with
    the model's derivatives by finite differences of 1 %.
    """
    sizes = [kib for kib in published if kib >= 8]
    constants = _constants(way)
    base_ps = np.array([_transfer_ps(way, kib, *constants) for kib in sizes], dtype=float)
    columns = []
    for index in range(len(constants)):
        moved = [
            round(value * (1.01 if index == position else 1)) for position, value in enumerate(constants)
        ]
        columns.append([_transfer_ps(way, kib, *moved) for kib in sizes])
    published_ps = np.array([kib * KIB / (published[kib] * 2**30) * 1e12 for kib in sizes])
    slopes = (np.array(columns, dtype=float).T - base_ps[:, None]) / published_ps[:, None]
    residual = (published_ps - base_ps) / published_ps
    errors = []
    for left_out in range(len(sizes)):
        keep = np.arange(len(sizes)) != left_out
        change, *_ = np.linalg.lstsq(slopes[keep], residual[keep], rcond=None)
        predicted_ps = base_ps[left_out] + published_ps[left_out] * (slopes[left_out] @ change)
        errors.append(math.log(published_ps[left_out] / predicted_ps))
    return _log_rms_percent(errors)
