"""PIM against published figures: command-rate peaks, AttAcc's simulator table, AttAcc's decode steps, PAM.

Nothing here is fitted: intervals and timings are the sources' own, the schedule is the published mapping.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nearkv_sim.hardware.pim.attention import decode_attention_ps, stack_attention
from nearkv_sim.hardware.pim.channel import PimChannel
from nearkv_sim.hardware.pim.config import LEVELS, PimConfig, pim_profile
from nearkv_sim.hardware.pim.schedule import Macs, Tile
from nearkv_sim.validation.check import Check, at_most, within

TABLE = Path(__file__).parent / "data" / "attacc_hbm3_attention_cycles.csv"
SIMULATOR = "AttAcc simulator, result table ramulator.out (scale-snu/attacc_simulator)"
BOUND = "bound of this project on the error against the AttAcc simulator's table"
DECODES = "AttAcc simulator, main.py: 40 stacks, Lin 2048, its default Lout 128, bank level, power cap"
CHANNELS = 16
# Level, tokens, heads, published cycles, irregularities of the published generator. The table holds two
# values for 51 and 130 heads. The point of three heads is met without the irregularities; with them the model
# takes 4,529 cycles, so it seems to come from another version of the generator.
POINTS = (
    ("bank", 512, 64, 3711, True),
    ("bank", 1024, 64, 7861, True),
    ("bank", 2048, 3, 3810, False),
    ("bank", 2048, 51, 16_161, True),
    ("bank", 2048, 51, 16_383, True),
    ("bank", 2048, 130, 36_572, True),
    ("bank", 2048, 130, 38_138, True),
    ("bank", 4096, 64, 32_595, True),
    ("bank_group", 2048, 64, 53_951, True),
    ("buffer_die", 2048, 64, 144_953, True),
)
# Model, layers, heads, batch, published ms. Mean length of the step: 2,048 tokens in, 128 generated.
DECODE = (
    ("GPT-175B", 96, 96, 1, 0.367),
    ("GPT-175B", 96, 96, 32, 1.680),
    ("GPT-175B", 96, 96, 54, 2.948),
    ("LLaMA-65B", 80, 64, 32, 1.019),
)
DECODE_TOKENS = 2048 + 128 // 2
DECODE_STACKS = 40
MACS_PER_TOKEN_AND_HEAD = {"bank": 0.25, "bank_group": 1.0, "buffer_die": 8.0}


@dataclass(frozen=True)
class Point:
    """One row of the table."""

    level: str
    power_capped: bool
    tokens: int
    heads: int
    cycles: int
    macs: int

    @property
    def name(self) -> str:
        """As checks call it."""
        cap = "capped" if self.power_capped else "uncapped"
        return f"pim/attacc/{self.level}/{cap}/{self.heads}heads/{self.tokens}"


@cache
def table() -> tuple[Point, ...]:
    """The published points."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return tuple(
            Point(
                row["pim_level"],
                row["power_capped"] == "true",
                int(row["seq_len"]),
                int(row["heads"]),
                int(row["cycles"]),
                int(row["mac_commands"]),
            )
            for row in csv.DictReader(file)
        )


def attacc(level: str) -> PimConfig:
    """AttAcc with units at one level."""
    return pim_profile(f"attacc_{level}").config


def our_cycles(point: Point) -> int:
    """Cycles of a point."""
    return stack_attention(
        attacc(point.level), point.tokens, point.heads, power_capped=point.power_capped, as_published=True
    ).cycles


def capped_cycles(level: str, tokens: int, heads: int, as_published: bool) -> int:
    """Cycles under the power cap."""
    return stack_attention(attacc(level), tokens, heads, power_capped=True, as_published=as_published).cycles


def cycle_errors(level: str | None = None) -> list[float]:
    """Sorted relative errors of cycles, in percent."""
    chosen = [point for point in table() if level in (None, point.level)]
    return sorted(100 * abs(our_cycles(point) / point.cycles - 1) for point in chosen)


def median_error(level: str | None) -> float:
    """Of `cycle_errors`."""
    return statistics.median(cycle_errors(level))


def percentile_95(level: str | None) -> float:
    """The smallest of `cycle_errors` that at most 5 % of all exceed."""
    errors = cycle_errors(level)
    return errors[-(-len(errors) * 95 // 100) - 1]


def mac_count_error() -> float:
    """Largest relative error of MAC counts, in percent, where heads fill the channels evenly."""
    errors = []
    for point in table():
        if point.heads % CHANNELS == 0:
            result = stack_attention(
                attacc(point.level),
                point.tokens,
                point.heads,
                power_capped=point.power_capped,
                as_published=True,
            )
            errors.append(100 * abs(result.counters.macs / point.macs - 1))
    return max(errors)


def macs_per_token_and_head(level: str, tokens: int = 2048, heads: int = 64) -> float:
    """MAC commands of one channel's schedule without irregularities."""
    return stack_attention(attacc(level), tokens, heads).counters.macs / (tokens * heads)


def command_rate_gb_per_s(name: str) -> float:
    """Operand bytes per second while one open row lasts, from the cycles in which the channel issues MACs."""
    config = pim_profile(name).config
    dram = config.dram_config

    def cycles(count: int) -> int:
        return PimChannel(config, refresh=False).run([Tile((), Macs(0, 0, count), ())])

    count = dram.columns
    spacing_ps = (cycles(count) - cycles(1)) * dram.clock_ps / (count - 1)
    return float(dram.channels * config.command_bytes * 1000 / spacing_ps)


def decode_ms(layers: int, heads: int, batch: int) -> float:
    """Attention of a decode step on bank-level AttAcc under its power cap."""
    time_ps = decode_attention_ps(
        attacc("bank"),
        stacks=DECODE_STACKS,
        layers=layers,
        heads=heads,
        batch=batch,
        tokens=DECODE_TOKENS,
        as_published=True,
    )
    return time_ps / 1e9


def _call(function: Callable[..., float], *arguments: object) -> Callable[[], float]:
    return lambda: function(*arguments)


def checks() -> list[Check]:
    """Every published figure of this area."""
    return [*_peaks(), *_attacc_cycles(), *_attacc_summaries(), *_decode_steps()]


def _peaks() -> list[Check]:
    return [
        within(
            "pim/peak/aquabolt_xl",
            "GB/s",
            1228.8,
            0.001,
            "Kim et al., Aquabolt-XL, Hot Chips 33, 2021: 1.2288 TB/s on the die per stack",
            _call(command_rate_gb_per_s, "aquabolt_xl"),
        ),
        within(
            "pim/peak/aquabolt_xl_2000",
            "GB/s",
            1024.0,
            0.001,
            "computed: Samsung PIMSimulator's 1 ns clock, tCCDL 4: 16 x 8 units x 32 B per 4 ns",
            _call(command_rate_gb_per_s, "aquabolt_xl_2000"),
        ),
        within(
            "pim/peak/gddr6_aim",
            "GB/s",
            512.0,
            0.001,
            "Lee et al., GDDR6-AiM, ISSCC 2022: 16 banks x 32 B at 1 GHz per channel",
            _call(command_rate_gb_per_s, "gddr6_aim"),
        ),
        # One multiply-add per FP16 operand: a FLOP per byte.
        within(
            "pim/peak/pam_ddr",
            "GFLOPS",
            204.0,
            0.01,
            "PAM, arXiv 2602.11521: compute of a DDR-PIM device under the power cap",
            _call(command_rate_gb_per_s, "pam_ddr"),
        ),
    ]


def _attacc_cycles() -> list[Check]:
    named = [
        within(
            f"pim/attacc_table/{level}/{heads}heads/{tokens}/published{cycles}",
            "cycles",
            cycles,
            0.05,
            SIMULATOR,
            _call(capped_cycles, level, tokens, heads, as_published),
            held_out=as_published,  # the point without irregularities is the one that chose to leave them out
        )
        for level, tokens, heads, cycles, as_published in POINTS
    ]
    table_points = [
        within(point.name, "cycles", point.cycles, 0.05, SIMULATOR, _call(our_cycles, point))
        for point in table()
    ]
    return [*named, *table_points]


def _attacc_summaries() -> list[Check]:
    result: list[Check] = []
    for part in (None, *LEVELS):
        name = part or "all"
        result += [
            at_most(f"pim/attacc_median/{name}", "%", 5.0, BOUND, _call(median_error, part)),
            at_most(f"pim/attacc_95th/{name}", "%", 12.0, BOUND, _call(percentile_95, part)),
        ]
    result.append(at_most("pim/attacc_mac_count/evenly_filled", "%", 3.0, BOUND, mac_count_error))
    result += [
        within(
            f"pim/macs_per_token_and_head/{level}",
            "",
            published,
            0.03,
            SIMULATOR,
            _call(macs_per_token_and_head, level),
        )
        for level, published in MACS_PER_TOKEN_AND_HEAD.items()
    ]
    return result


def _decode_steps() -> list[Check]:
    return [
        within(
            f"pim/decode/{model}/batch{batch}",
            "ms",
            published,
            0.10,
            DECODES,
            _call(decode_ms, layers, heads, batch),
        )
        for model, layers, heads, batch, published in DECODE
    ]
