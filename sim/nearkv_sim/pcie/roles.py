"""Tells what a TLP on the card's link is for, and whether a fault plan has something for it."""

from __future__ import annotations

from collections import Counter

from cocotbext.pcie.core.tlp import CplStatus, Tlp

from nearkv_hdl.spec.register_map import WINDOW_BYTES
from nearkv_sim.card.card import HOST_COMPLETION
from nearkv_sim.hardware.pcie_tlp import MSI_ADDRESS
from nearkv_sim.pcie.doorbells import DOORBELL_OFFSET
from nearkv_sim.pcie.faults import Fault, FaultKind, FaultPlan, TlpRole
from nearkv_sim.pcie.requester import Parties
from nearkv_sim.pcie.shell import CONTROL, Card

_STATUS = {FaultKind.UR: CplStatus.UR, FaultKind.CA: CplStatus.CA}


def role_of(tlp: Tlp, upstream: bool, card: Card, drive_id: str) -> TlpRole | None:
    """Role of a TLP on the card's link; None for configuration and whatever else has none."""
    if tlp.is_completion():
        if not upstream:
            return TlpRole.QUERY_COMPLETION
        return TlpRole.KEY_COMPLETION if str(tlp.requester_id) == drive_id else TlpRole.REGISTER_COMPLETION
    writes = tlp.has_data()
    if upstream:
        if not writes:
            return TlpRole.QUERY_LOAD
        return {MSI_ADDRESS: TlpRole.MSI, HOST_COMPLETION: TlpRole.DMA_COMPLETION}.get(
            tlp.address, TlpRole.RESULT_WRITE
        )
    if (found := card.match_bar(tlp.address)) is None:
        return None
    bar, offset = found
    if bar != CONTROL:
        return TlpRole.KEY_READ if writes else TlpRole.KEY_WRITE
    if offset == DOORBELL_OFFSET:
        return TlpRole.DOORBELL
    if offset >= WINDOW_BYTES:
        return None
    return TlpRole.REGISTER_WRITE if writes else TlpRole.REGISTER_READ


class Injector:
    """Hands the faults of a plan to the TLPs that they are meant for.

    Args:
        card: whose link it is.
        drive_id: identifier of the drive.
        parties: gets the refusals.

    """

    def __init__(self, card: Card, drive_id: str, parties: Parties) -> None:
        self._card, self._drive_id, self._parties = card, drive_id, parties
        self._faults: dict[tuple[TlpRole, int], Fault] = {}
        self._seen: Counter[TlpRole] = Counter()

    def restart(self, plan: FaultPlan) -> None:
        """Begin a plan, with every index at 0."""
        self._faults = {(fault.tlp, fault.index): fault for fault in plan.faults}
        self._seen.clear()
        self._parties.refusals.clear()

    def pending(self) -> list[Fault]:
        """Faults whose TLP has not come yet."""
        return list(self._faults.values())

    def judge(self, tlp: Tlp, upstream: bool) -> Fault | None:
        """What this TLP, sent for the first time, suffers."""
        role = role_of(tlp, upstream, self._card, self._drive_id)
        if role is None:
            return None
        index = self._seen[role]
        self._seen[role] += 1
        fault = self._faults.pop((role, index), None)
        if fault and fault.fault in _STATUS:
            self._parties.refusals[str(tlp.requester_id), tlp.tag] = _STATUS[fault.fault]
        return fault
