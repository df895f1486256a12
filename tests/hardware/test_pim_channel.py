"""PIM channel: hand-checked cycles, batched against single commands, traces that the checker accepts."""

import random
from itertools import pairwise

import pytest

from nearkv_sim.hardware.dram.checker import check_trace
from nearkv_sim.hardware.dram.command import Address, Command
from nearkv_sim.hardware.pim.channel import PimChannel
from nearkv_sim.hardware.pim.config import pim_profile
from nearkv_sim.hardware.pim.placement import Placement
from nearkv_sim.hardware.pim.schedule import Macs, Move, Tile, channel_schedule, head_shape

NAMES = (
    "attacc_bank",
    "attacc_bank_group",
    "attacc_buffer_die",
    "aquabolt_xl",
    "aquabolt_xl_2000",
    "gddr6_aim",
    "pam_ddr",
)
BANK = pim_profile("attacc_bank").config


def record(config, tiles, **options):
    trace = []
    channel = PimChannel(config, batched=False, trace=trace, **options)
    end = channel.run(tiles)
    trace.sort(key=lambda issue: issue.cycle)
    return end, trace, channel.counters


def test_smallest_example():
    """ACT in cycle 0, first MAC t_rcd later, another every 4; a new row costs t_rtp + t_rp + t_rcd."""
    end, trace, counters = record(BANK, [Tile((), Macs(0, 0, 34), ())])
    macs = [issue.cycle for issue in trace if issue.command is Command.MAC_AB]
    assert macs[:3] == [19, 23, 27]
    assert macs[32] - macs[31] == 8 + 19 + 19
    assert end == macs[-1] + 1
    assert [issue.command for issue in trace if issue.command is not Command.MAC_AB] == [
        Command.ACT_AB,
        Command.PREA,
        Command.ACT_AB,
    ]
    assert (counters.macs, counters.activates) == (34, 2 * 64)


def test_power_cap_stretches_the_interval():
    _, trace, _ = record(BANK, [Tile((), Macs(0, 0, 3), ())], power_capped=True)
    assert [issue.cycle for issue in trace if issue.command is Command.MAC_AB] == [19, 25, 31]


def test_moves_wait_for_the_queue_and_the_barrier_for_moves():
    moves = (Move(Command.MV_SB, 0, 0),) * 30
    end, trace, _ = record(BANK, [Tile((), Macs(0, 0, 32), moves), Tile((), Macs(0, 32, 1), ())])
    moved = [issue.cycle for issue in trace if issue.command is Command.MV_SB]
    macs = [issue.cycle for issue in trace if issue.command is Command.MAC_AB]
    assert moved[0] == macs[0] + 1  # 31 MACs are left, the queue holds 32 requests
    assert all(later - earlier >= BANK.dram_config.t_ccd_l for earlier, later in pairwise(moved))
    assert not set(moved) & set(macs)
    assert macs[-1] > moved[-1]
    assert end == macs[-1] + 1


def test_refresh_stops_and_reopens():
    _, trace, counters = record(BANK, [Tile((), Macs(0, 0, 1300), ())])
    refreshes = [issue.cycle for issue in trace if issue.command is Command.REF]
    assert counters.refreshes == len(refreshes) == 2  # one in each pseudo-channel
    dram = BANK.dram_config
    macs = [issue.cycle for issue in trace if issue.command is Command.MAC_AB]
    before = max(cycle for cycle in macs if cycle < refreshes[0])
    after = min(cycle for cycle in macs if cycle > refreshes[0])
    assert before < dram.t_refi <= refreshes[0]
    assert after == refreshes[-1] + dram.t_rfc + dram.t_rcd_read


def test_buffer_die_hides_rows_behind_other_banks():
    """In rotation over 32 banks the next rows open in time: one MAC every t_bl, but for the command bus."""
    config = pim_profile("attacc_buffer_die").config
    count = 4 * 1024
    end = PimChannel(config, refresh=False).run([Tile((), Macs(0, 0, count), ())])
    assert 2 * count < end < 1.02 * 2 * count + 100


@pytest.mark.parametrize("name", NAMES)
def test_batched_equals_single_commands_and_traces_pass_the_checker(name):
    """The same cycles and counts, seeded over lengths, rounds, caps and head dimensions."""
    generator = random.Random(name)
    config = pim_profile(name).config
    for _ in range(6):
        tokens, rounds = generator.randrange(1, 1200), generator.randrange(1, 5)
        capped, as_published = generator.random() < 0.5, generator.random() < 0.5
        shape = head_shape(config, tokens, generator.choice((64, 80, 128)), generator.choice((1, 2)))
        batched = PimChannel(config, power_capped=capped)
        end = batched.run(channel_schedule(shape, rounds, as_published=as_published))
        tiles = channel_schedule(shape, rounds, as_published=as_published)
        single_end, trace, counters = record(config, tiles, power_capped=capped)
        assert (end, batched.counters) == (single_end, counters), (tokens, rounds, capped, as_published)
        assert check_trace(trace, config.dram_config, config.interval(power_capped=capped)) == len(trace)
        assert counters.macs == sum(issue.command is config.commands.mac for issue in trace)


def test_batched_equals_single_commands_over_many_refreshes():
    config = pim_profile("attacc_buffer_die").config
    shape = head_shape(config, 3000, 128, 2)
    batched = PimChannel(config)
    end = batched.run(channel_schedule(shape, 2))
    single = PimChannel(config, batched=False)
    assert single.run(channel_schedule(shape, 2)) == end
    assert single.counters == batched.counters
    assert batched.counters.refreshes > 40


@pytest.mark.parametrize("name", NAMES)
def test_placement_visits_every_column_of_every_slot_once(name):
    config = pim_profile(name).config
    dram, placement = config.dram_config, Placement(config)
    rows = 2
    count = rows * placement.slots * dram.columns * (config.banks_per_unit if config.level == "bank" else 1)
    places = [(placement.slot(index), placement.row(index)) for index in range(count)]
    addresses = [placement.address(index, 0) for index in range(count)]
    assert len(set(addresses)) == count
    assert {slot for slot, _ in places} == set(range(placement.slots))
    for index in range(0, count, 37):
        left = placement.left_in_row(index)
        assert placement.row(index + left - 1) == placement.row(index)
        assert placement.row(index + left) == placement.row(index) + 1


def test_matrices_have_rows_of_their_own():
    placement = Placement(BANK)
    assert placement.address(0, 1).row != placement.address(0, 2).row
    assert placement.address(0, 0) == Address()


def test_a_batched_channel_cannot_record():
    with pytest.raises(ValueError, match="trace is a list with batched True; allowed"):
        PimChannel(BANK, trace=[])
