"""Links by name."""

from __future__ import annotations

from nearkv_sim.hardware.link import Link, PcieRate
from nearkv_sim.hardware.link_flits import FlitLink, FlitLinkConfig
from nearkv_sim.hardware.pcie_config import PRESETS
from nearkv_sim.hardware.pcie_fabric import PeerConfig, PeerLink
from nearkv_sim.hardware.profile import PROFILE_FOLDER, named_profile

__all__ = ["link_names", "open_link"]


def link_names() -> tuple[str, ...]:
    """All names that `open_link` knows: pcie/PRESET, link/PROFILE, peer/PROFILE."""
    profiles = [
        f"{kind}/{path.stem}"
        for kind in ("link", "peer")
        for path in sorted((PROFILE_FOLDER / kind).glob("*.yaml"))
    ]
    return (*(f"pcie/{name}" for name in PRESETS), *profiles)


def open_link(name: str) -> Link:
    """An idle link; ValueError for a name that is not among `link_names()`."""
    if name not in link_names():
        raise ValueError(f"link is {name!r}; allowed: {', '.join(link_names())}")
    kind, profile = name.split("/")
    if kind == "pcie":
        return PcieRate(PRESETS[profile])
    if kind == "link":
        return FlitLink(named_profile(kind, profile, FlitLinkConfig).config)
    return PeerLink(named_profile(kind, profile, PeerConfig).config)
