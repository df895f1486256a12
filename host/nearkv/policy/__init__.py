"""Placement policies: which sealed tokens have a copy in the hot pool during the next step."""

from nearkv.policy.base import Mask, Observation, Policy, StreamInfo

__all__ = ["Mask", "Observation", "Policy", "StreamInfo"]
