"""DRAM against data sheets: peak rates that command spacing alone gives, row cycles, latencies, refresh."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from nearkv_sim.hardware.dram.channel import Access, DramChannel
from nearkv_sim.hardware.dram.command import Address
from nearkv_sim.hardware.dram.config import DramConfig, dram_profile
from nearkv_sim.hardware.dram.stream import scan, sequential_addresses
from nearkv_sim.validation.check import Check, within

ROW_MISSES = 200
# Profile, devices side by side, published GB/s, who says so.
PEAKS = (
    ("ddr4_2400", 1, 19.2, "JESD79-4: 2400 MT/s on 64 bits; as the SmartSSD's card memory is rated"),
    ("ddr4_3200", 1, 25.6, "JESD79-4: 3200 MT/s on 64 bits"),
    ("ddr5_4800", 8, 153.6, "JESD79-5: 4800 MT/s on four channels of two 32-bit subchannels"),
    ("hbm2_2400", 1, 307.2, "JESD235: 2.4 Gb/s on 1024 bits"),
    ("hbm2_2000", 1, 256.0, "JESD235: 2.0 Gb/s on 1024 bits"),
    ("hbm3_6400", 1, 819.2, "JESD238: 6.4 Gb/s on 1024 bits"),
    ("hbm3_5200", 1, 665.6, "JESD238: 5.2 Gb/s on 1024 bits"),
    ("gddr6_aim", 1, 32.0, "Lee et al., GDDR6-AiM, ISSCC 2022: 16 Gb/s on the 16 bits of a channel"),
)
MICRON_MODULE = "Micron MTA18ASF1G72PDZ data sheet, key timing parameters, PC4-2400 at CL 16"
MICRON_DDR4 = "Micron 8 Gb DDR4 SDRAM data sheet, speed bin -062E: 0.625 ns at CL 22"


def _config(name: str) -> DramConfig:
    return dram_profile(name).config


def peak_gb_per_s(name: str, devices: int) -> float:
    """Payload rate of reads of open rows in all bank groups in turn, over all channels of all devices."""
    config = _config(name)
    channel = DramChannel(config, refresh=False)
    half = config.groups * config.columns // 2
    addresses = sequential_addresses(config)
    opened = channel.run(Access(address) for address in islice(addresses, half))
    cycles = channel.run(Access(address) for address in islice(addresses, half)) - opened
    nbytes = half * config.access_bytes * config.channels * config.pseudo_channels * devices
    return nbytes * 1000 / config.to_ps(cycles)


def row_cycle_ns(name: str) -> float:
    """Time per read when every read needs another row of one bank."""
    config = _config(name)
    channel = DramChannel(config, refresh=False)
    first = channel.run([Access(Address(row=0))])
    last = channel.run(Access(Address(row=row)) for row in range(1, ROW_MISSES + 1))
    return config.to_ps(last - first) / 1000 / ROW_MISSES


def closed_read_ns(name: str) -> float:
    """Read of an idle, closed bank, up to the first data: without the burst."""
    config = _config(name)
    return config.to_ps(DramChannel(config).run([Access(Address())]) - config.t_bl) / 1000


def refresh_share(name: str) -> float:
    """Share of a long scan's time that refreshes take."""
    config = _config(name)
    return 1 - scan(config, 1 << 32).bytes_per_s / 1e9 / peak_gb_per_s(name, 1)


def _call(function: Callable[..., float], *arguments: object) -> Callable[[], float]:
    return lambda: function(*arguments)


def checks() -> list[Check]:
    """Every published figure of this area."""
    result = [
        within(f"dram/peak/{name}", "GB/s", published, 0.01, source, _call(peak_gb_per_s, name, devices))
        for name, devices, published, source in PEAKS
    ]
    for name, row_cycle, latency, source in (
        ("ddr4_2400", 45.32, 2 * 13.32, MICRON_MODULE),
        ("ddr4_3200", 45.75, 2 * 13.75, MICRON_DDR4),
    ):
        result.append(
            within(f"dram/row_cycle/{name}", "ns", row_cycle, 0.02, source, _call(row_cycle_ns, name))
        )
        result.append(
            within(f"dram/closed_read/{name}", "ns", latency, 0.02, source, _call(closed_read_ns, name))
        )
    # A refresh takes t_rfc, and at most a row cycle more to close and open rows again.
    for name, refresh_ns, cycle_ns, interval_ns, source in (
        ("ddr4_3200", 350, 45.75, 7800, "JESD79-4: 8 Gb, tRFC1 350 ns and tRC 45.75 ns per tREFI 7.8 us"),
        ("ddr5_4800", 295, 47, 3900, "JESD79-5: 16 Gb, tRFC1 295 ns and tRC 47 ns per tREFI 3.9 us"),
    ):
        low, high = refresh_ns / interval_ns, (refresh_ns + cycle_ns) / interval_ns
        measure = _call(refresh_share, name)
        result.append(Check(f"dram/refresh_share/{name}", "", None, low, high, source, measure))
    return result
