"""Attention of one decode step on PIM stacks: cycles, what they consist of, commands, energy."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from nearkv_sim.hardware.dram.config import MOST
from nearkv_sim.hardware.dram.energy import DramEnergy
from nearkv_sim.hardware.dram.stream import REMEMBERED_RUNS
from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.pim.channel import PimChannel, PimCounters
from nearkv_sim.hardware.pim.config import BANK, BANK_GROUP, PimConfig
from nearkv_sim.hardware.pim.schedule import HeadShape, channel_schedule, head_shape

FP16_BYTES = 2


@dataclass(frozen=True)
class PimResult:
    """One attention layer in one stack.

    Attributes:
        cycles: until the last command.
        time_ps: the same at the DRAM's clock.
        counters: commands of all channels.
        kv_bytes: keys and values that the heads hold, without padding.
        energy: of all channels.
        parts_cycles: what the cycles consist of; the parts add up to them.

    """

    cycles: int
    time_ps: int
    counters: PimCounters
    kv_bytes: int
    energy: DramEnergy
    parts_cycles: dict[str, int]

    @property
    def bytes_per_s(self) -> float:
        """Keys and values over time."""
        return self.kv_bytes * 1e12 / self.time_ps


@lru_cache(maxsize=REMEMBERED_RUNS)
def stack_attention(
    config: PimConfig,
    tokens: int,
    heads: int,
    *,
    head_dim: int = 128,
    element_bytes: int = FP16_BYTES,
    power_capped: bool = False,
    as_published: bool = False,
) -> PimResult:
    """Attention of `heads` heads with keys and values of their own over `tokens` tokens in one stack.

    Heads go round the channels; the channel with most heads is simulated and the others finish within it.

    Args:
        config: device.
        tokens: per head.
        heads: in this stack, over all requests.
        head_dim: channels per head.
        element_bytes: of a key or value element.
        power_capped: hold the power cap.
        as_published: with the irregularities of AttAcc's command generator (see `channel_schedule`).

    Raises:
        ValueError: heads below 1, and what `head_shape` refuses.

    """
    require_integer("heads", heads, 1, MOST)
    dram = config.dram_config
    shape = head_shape(config, tokens, head_dim, element_bytes)
    rounds, last_heads = -(-heads // dram.channels), heads % dram.channels or dram.channels
    total = PimCounters()
    cycles = 0
    parts: dict[str, int] = {}
    # Channels of two kinds: with a head in the last round, and without.
    for count, channels in ((rounds, last_heads), (rounds - 1, dram.channels - last_heads)):
        if count and channels:
            channel = PimChannel(config, power_capped=power_capped)
            ended = channel.run(channel_schedule(shape, count, as_published=as_published))
            if ended > cycles:
                cycles = ended
                parts = _parts(config, channel.counters, cycles, power_capped=power_capped)
            for name, value in vars(channel.counters).items():
                setattr(total, name, getattr(total, name) + value * channels)
    if as_published:
        total.macs = _published_macs(shape, rounds, last_heads, dram.channels)
    kv_bytes = 2 * heads * tokens * head_dim * element_bytes
    energy = _energy(config, total, element_bytes)
    result = PimResult(cycles, dram.to_ps(cycles), total, kv_bytes, energy, parts)
    limit = config.command_rate_bound(power_capped=power_capped)
    assert Fraction(kv_bytes * 10**12, result.time_ps) <= limit, "faster than MAC commands can be issued"
    return result


def decode_attention_ps(
    config: PimConfig,
    *,
    stacks: int,
    layers: int,
    heads: int,
    batch: int,
    tokens: int,
    head_dim: int = 128,
    power_capped: bool = True,
    as_published: bool = False,
) -> int:
    """Attention of all layers of one decode step, in ps.

    The heads of `batch` requests are spread over `stacks` stacks, ceil(heads · batch / stacks) to a stack;
    layers follow each other. ValueError for a count below 1.
    """
    for name, value in (("stacks", stacks), ("layers", layers), ("heads", heads), ("batch", batch)):
        require_integer(name, value, 1, MOST)
    layer = stack_attention(
        config,
        tokens,
        -(-heads * batch // stacks),
        head_dim=head_dim,
        power_capped=power_capped,
        as_published=as_published,
    )
    return layers * layer.time_ps


def _published_macs(shape: HeadShape, rounds: int, last_heads: int, channels: int) -> int:
    """MAC commands as the published generator counts them.

    One too many per channel if heads are paired, and the second head of the last pair rereads the first one's
    values in every channel that has the first one.
    """
    heads = (rounds - 1) * channels + last_heads
    extra = channels if rounds > 1 else 0
    rereads = channels - last_heads if rounds % 2 == 0 else 0
    return heads * shape.macs + extra + rereads * shape.macs // 2


def _energy(config: PimConfig, counters: PimCounters, element_bytes: int) -> DramEnergy:
    """MAC operands leave the bank, the group or the stack of dies; moves cross all of them."""
    dram = config.dram_config
    mac_bytes = counters.macs * config.command_bytes
    move_bytes = counters.moves * dram.access_bytes
    group_pj, channel_pj = dram.group_path_pj_per_byte, dram.channel_path_pj_per_byte
    to_unit_pj = {BANK: 0.0, BANK_GROUP: group_pj}.get(config.level, group_pj + channel_pj)
    return DramEnergy(
        activate_pj=counters.activates * dram.activate_pj,
        array_pj=mac_bytes * dram.array_pj_per_byte,
        path_pj=mac_bytes * to_unit_pj + move_bytes * (group_pj + channel_pj),
        interface_pj=counters.loads * dram.access_bytes * dram.interface_pj_per_byte,
        mac_pj=mac_bytes // element_bytes * config.mac_pj,
    )


def _parts(config: PimConfig, counters: PimCounters, cycles: int, *, power_capped: bool) -> dict[str, int]:
    """Cycles of the busiest channel: MACs at their interval, refreshes, and what neither hides."""
    dram = config.dram_config
    macs = counters.macs * config.interval(power_capped=power_capped)
    refresh = counters.refreshes // dram.pseudo_channels * dram.t_rfc
    rest = cycles - macs - refresh
    assert rest >= 0, "parts longer than the whole"
    return {"MAC interval": macs, "refresh": refresh, "rows, barriers, moves": rest}
