"""Checks a recorded command trace against the timing table; shares no code with the state machines.

Row state, refresh debt and every constraint are followed command by command, straight from the tables of
`constraints` and the reach of each command.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import lru_cache

from nearkv_sim.hardware.dram.command import (
    ACTIVATES,
    NEEDS_ROW,
    PRECHARGES,
    Address,
    Command,
    Issue,
    banks_reached,
)
from nearkv_sim.hardware.dram.config import DramConfig
from nearkv_sim.hardware.dram.constraints import Constraint, Scope, timing_table

POSTPONED_REFRESHES = 8  # JESD79-4 4.26 and JESD235: at most eight may be owed
Bank = tuple[int, ...]


class TraceError(ValueError):
    """A command that the device does not allow; the message quotes it and the rule."""


class TraceChecker:
    """Follows one channel; `check` takes one command after the other.

    Args:
        config: the device.
        mac_interval: cycles between MAC commands, None for a device without.
        refresh: demand refreshes.

    """

    def __init__(self, config: DramConfig, mac_interval: int | None = None, *, refresh: bool = True) -> None:
        self._config = config
        self._refresh = refresh
        self._last: dict[tuple[Command, Bank], deque[int]] = {}
        self._rows: dict[Bank, int] = {}
        self._refreshes: dict[int, int] = defaultdict(int)
        self._cycle = 0
        self._rules: dict[Command, list[Constraint]] = {
            command: [rule for rule in timing_table(config, mac_interval) if command in rule.following]
            for command in Command
        }
        self._depth = max(rule.window for rules in self._rules.values() for rule in rules)

        @lru_cache(maxsize=4096)
        def places(command: Command, address: Address) -> tuple[tuple[Bank, ...], ...]:
            banks = banks_reached(config, command, address)
            return tuple(tuple({bank[:scope] for bank in banks}) for scope in Scope)

        self._places = places

    def check(self, issue: Issue) -> None:
        """Accept the next command. TraceError names the constraint, its distance and what it needs."""
        if issue.cycle < self._cycle:
            raise TraceError(f"{issue}: out of order; allowed: from cycle {self._cycle}")
        self._cycle = issue.cycle
        # Row and column say nothing about reach.
        places = self._places(issue.command, issue.address._replace(row=0, column=0))
        for rule in self._rules[issue.command]:
            for place in places[rule.scope]:
                for previous in rule.previous:
                    past = self._last.get((previous, place))
                    if past is not None and len(past) >= rule.window:
                        distance = issue.cycle - past[-rule.window]
                        if distance < rule.cycles:
                            raise TraceError(
                                f"{issue}: {rule.name} after {previous.label} is {distance} cycles;"
                                f" allowed: from {rule.cycles}"
                            )
        self._follow_rows(issue, places[Scope.BANK])
        for scope in places:
            for place in scope:
                key = (issue.command, place)
                if key not in self._last:
                    self._last[key] = deque(maxlen=self._depth)
                self._last[key].append(issue.cycle)

    def _follow_rows(self, issue: Issue, banks: tuple[Bank, ...]) -> None:
        command, row = issue.command, issue.address.row
        for bank in banks:
            held = self._rows.get(bank)
            if command in NEEDS_ROW and held != row:
                raise TraceError(f"{issue}: bank {bank} holds row {held}; allowed: the addressed row")
            if command in ACTIVATES:
                if held is not None:
                    raise TraceError(f"{issue}: bank {bank} holds row {held}; allowed: a closed bank")
                self._rows[bank] = row
            elif command in PRECHARGES:
                self._rows.pop(bank, None)
            elif command is Command.REF and held is not None:
                raise TraceError(f"{issue}: bank {bank} holds row {held}; allowed: all closed")
        if command is Command.REF:
            self._refreshes[issue.address.pseudo_channel] += 1
        elif self._refresh and command in ACTIVATES:
            self._check_debt(issue, {bank[0] for bank in banks})

    def _check_debt(self, issue: Issue, pseudo_channels: set[int]) -> None:
        due = issue.cycle // self._config.t_refi
        for pseudo_channel in sorted(pseudo_channels):
            owed = due - self._refreshes[pseudo_channel]
            if owed > POSTPONED_REFRESHES:
                raise TraceError(
                    f"{issue}: pseudo-channel {pseudo_channel} owes {owed} refreshes; allowed: up to"
                    f" {POSTPONED_REFRESHES}"
                )


def check_trace(
    trace: Iterable[Issue], config: DramConfig, mac_interval: int | None = None, *, refresh: bool = True
) -> int:
    """Check a whole trace, in order of cycles; returns how many commands it holds.

    TraceError for the first command that breaks a rule.
    """
    checker = TraceChecker(config, mac_interval, refresh=refresh)
    count = 0
    for issue in trace:
        checker.check(issue)
        count += 1
    return count
