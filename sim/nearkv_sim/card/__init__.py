"""A simulated accelerator card: memory, registers and job control around a scoring engine."""

from nearkv_sim.card.card import SimulatedCard
from nearkv_sim.card.memory import DeviceMemory, UnwrittenMemory

__all__ = ["DeviceMemory", "SimulatedCard", "UnwrittenMemory"]
