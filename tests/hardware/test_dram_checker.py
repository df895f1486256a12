"""Every rule of the timing table, one violation each: refused one cycle early, accepted at the distance."""

from dataclasses import fields, replace

import pytest

from nearkv_sim.hardware.dram.checker import TraceError, check_trace
from nearkv_sim.hardware.dram.command import Address, Command, Issue
from nearkv_sim.hardware.dram.config import DramConfig, dram_profile
from nearkv_sim.hardware.dram.constraints import timing_table

C = Command
LONG = 50


def fast_config(**changes: int) -> DramConfig:
    """A device whose other times are one cycle, so that only the rule under test binds."""
    config = dram_profile("ddr4_3200").config
    times = {field.name: 1 for field in fields(config) if field.name.startswith("t_")}
    times |= {"t_refi": 100_000, "t_rfc": 1, "ranks": 2, "pseudo_channels": 2}
    return replace(config, **(times | changes))


HERE = Address()
OTHER_ROW = Address(row=1)
OTHER_BANK = Address(bank=1)
OTHER_GROUP = Address(group=1)
OTHER_RANK = Address(rank=1)


def opened(*addresses: Address) -> list[tuple[int, Command, Address]]:
    """Activations long before the commands under test."""
    return [(10 * index, C.ACT, address) for index, address in enumerate(addresses)]


def after(command: Command, address: Address = HERE) -> list[tuple[int, Command, Address]]:
    """One command at cycle 1000."""
    return [(1000, command, address)]


# Rule, changed times, commands before, the last at cycle 1000; the command that comes too early; distance.
VIOLATIONS = [
    ("command bus", {}, [], C.PRE, C.PRE, HERE, 1),
    ("command bus after ACT", {"activate_cycles": 2}, [], C.ACT, C.PRE, OTHER_BANK, 2),
    ("command bus after access", {"column_cycles": 2}, opened(HERE), C.RD, C.PRE, OTHER_BANK, 2),
    ("t_bl", {"t_bl": LONG}, opened(HERE, OTHER_RANK), C.RD, C.RD, OTHER_RANK, LONG),
    ("t_bl", {"t_bl": LONG}, opened(HERE, OTHER_RANK), C.WR, C.WR, OTHER_RANK, LONG),
    ("t_ccd_s", {"t_ccd_s": LONG}, opened(HERE, OTHER_GROUP), C.RD, C.RD, OTHER_GROUP, LONG),
    ("t_ccd_s", {"t_ccd_s": LONG}, opened(HERE, OTHER_GROUP), C.WR, C.WR, OTHER_GROUP, LONG),
    ("t_ccd_l", {"t_ccd_l": LONG}, opened(HERE, OTHER_BANK), C.RD, C.RD, OTHER_BANK, LONG),
    ("t_ccd_l_write", {"t_ccd_l_write": LONG}, opened(HERE, OTHER_BANK), C.WR, C.WR, OTHER_BANK, LONG),
    ("t_rtw", {"t_cl": LONG}, opened(HERE, OTHER_RANK), C.RD, C.WR, OTHER_RANK, LONG + 2),
    ("t_wtr_s", {"t_wtr_s": LONG}, opened(HERE, OTHER_GROUP), C.WR, C.RD, OTHER_GROUP, LONG + 2),
    ("t_wtr_l", {"t_wtr_l": LONG}, opened(HERE, OTHER_BANK), C.WR, C.RD, OTHER_BANK, LONG + 2),
    ("t_rcd_read", {"t_rcd_read": LONG}, [], C.ACT, C.RD, HERE, LONG),
    ("t_rcd_read", {"t_rcd_read": LONG}, [], C.ACT_AB, C.MAC_AB, HERE, LONG),
    ("t_rcd_write", {"t_rcd_write": LONG}, [], C.ACT, C.WR, HERE, LONG),
    ("t_ras", {"t_ras": LONG, "t_rc": LONG}, [], C.ACT, C.PRE, HERE, LONG),
    ("t_ras", {"t_ras": LONG, "t_rc": LONG}, [], C.ACT_SB, C.PREA, HERE, LONG),
    ("t_rp", {"t_rp": LONG}, opened(HERE), C.PRE, C.ACT, OTHER_ROW, LONG),
    ("t_rp", {"t_rp": LONG}, opened(HERE), C.PREA, C.REF, HERE, LONG),
    ("t_rtp", {"t_rtp": LONG}, opened(HERE), C.RD, C.PRE, HERE, LONG),
    ("t_rtp", {"t_rtp": LONG}, [(0, C.ACT_PB, HERE)], C.MAC_PB, C.PRE_PB, HERE, LONG),
    ("t_wr", {"t_wr": LONG}, opened(HERE), C.WR, C.PRE, HERE, LONG + 2),
    ("t_rrd_s", {"t_rrd_s": LONG}, [], C.ACT, C.ACT, OTHER_GROUP, LONG),
    ("t_rrd_l", {"t_rrd_l": LONG}, [], C.ACT, C.ACT, OTHER_BANK, LONG),
    ("t_rfc", {"t_rfc": LONG}, [], C.REF, C.ACT, HERE, LONG),
    ("mac_interval", {}, [(0, C.ACT_AB, HERE)], C.MAC_AB, C.MAC_AB, HERE, 4),
    ("t_ccd_s of MAC", {"t_ccd_s": LONG}, "twin", C.MAC_PB, C.MAC_PB, OTHER_GROUP, LONG),
    ("t_ccd_l of MAC", {"t_ccd_l": LONG}, "twin", C.MAC_PB, C.MAC_PB, OTHER_BANK, LONG),
    ("t_bl of moves", {"t_bl": LONG}, [], C.WR_GB, C.MV_SB, OTHER_RANK, LONG),
    ("t_ccd_s of moves", {"t_ccd_s": LONG}, [], C.MV_GB, C.MV_SB, OTHER_GROUP, LONG),
    ("t_ccd_l of moves", {"t_ccd_l": LONG}, [], C.MV_SB, C.SOFTMAX, HERE, LONG),
]


def check(config: DramConfig, commands: list[tuple[int, Command, Address]]) -> int:
    return check_trace([Issue(*command) for command in commands], config, mac_interval=4)


@pytest.mark.parametrize(("rule", "times", "before", "first", "second", "address", "cycles"), VIOLATIONS)
def test_one_violation(rule, times, before, first, second, address, cycles):
    config = fast_config(**times)
    if before == "twin":
        before = [(100 * index, C.ACT_PB, place) for index, place in enumerate((HERE, address))]
    start = 1000
    commands = [*before, (start, first, HERE)]
    assert check(config, [*commands, (start + cycles, second, address)]) == len(commands) + 1
    with pytest.raises(TraceError, match=rf"{rule} after {first.label} is {cycles - 1} cycles; allowed"):
        check(config, [*commands, (start + cycles - 1, second, address)])


@pytest.mark.parametrize("second", [C.ACT, C.REF])
def test_row_cycle(second):
    config = fast_config(t_rc=LONG)
    commands = [(0, C.ACT, HERE), (10, C.PRE, HERE)]
    assert check(config, [*commands, (LONG, second, OTHER_ROW)]) == 3
    with pytest.raises(TraceError, match="t_rc after ACT is 49 cycles; allowed: from 50"):
        check(config, [*commands, (LONG - 1, second, OTHER_ROW)])


def test_four_activate_window():
    config = fast_config(t_faw=LONG)
    commands = [(cycle, C.ACT, Address(group=cycle)) for cycle in range(4)]
    assert check(config, [*commands, (LONG, C.ACT, OTHER_BANK)]) == 5
    with pytest.raises(TraceError, match="t_faw after ACT is 49 cycles; allowed: from 50"):
        check(config, [*commands, (LONG - 1, C.ACT, OTHER_BANK)])


def test_every_rule_is_tested():
    tested = {rule for rule, *_ in VIOLATIONS} | {"t_rc", "t_faw"}
    assert tested == {rule.name for rule in timing_table(fast_config(), mac_interval=4)}


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ([(0, C.RD, HERE)], "holds row None; allowed: the addressed row"),
        ([(0, C.ACT, HERE), (9, C.RD, OTHER_ROW)], "holds row 0; allowed: the addressed row"),
        ([(0, C.ACT, HERE), (9, C.MAC_AB, HERE)], "holds row None; allowed: the addressed row"),
        ([(0, C.ACT, HERE), (9, C.ACT, OTHER_ROW)], "allowed: a closed bank"),
        ([(0, C.ACT, HERE), (9, C.REF, HERE)], "allowed: all closed"),
        ([(9, C.PRE, HERE), (8, C.PRE, HERE)], "out of order; allowed: from cycle 9"),
        ([(900_000, C.ACT, HERE)], "owes 9 refreshes; allowed: up to 8"),
    ],
)
def test_state_violations(commands, message):
    with pytest.raises(TraceError, match=message):
        check(fast_config(), commands)


def test_reach():
    """Same-bank commands open that bank in every group, rank and pseudo-channel; no other."""
    config = fast_config()
    place = Address(1, 1, 3, 2)
    assert check(config, [(0, C.ACT_SB, Address(bank=2)), (9, C.RD, place)]) == 2
    with pytest.raises(TraceError, match="holds row None"):
        check(config, [(0, C.ACT_SB, Address(bank=1)), (9, C.RD, place)])


def test_refresh_can_be_left_out():
    assert check_trace([Issue(900_000, C.ACT, HERE)], fast_config(), refresh=False) == 1
