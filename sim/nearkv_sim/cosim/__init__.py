"""RTL compiled to machine code and driven by numpy arrays; a runner for cocotb benches."""

from nearkv_sim.cosim.compiled import CompiledComponent
from nearkv_sim.cosim.result import (
    CosimBuildError,
    CosimContractError,
    CosimDeadlock,
    CosimError,
    CosimSurplus,
    FlagStats,
    PortStats,
    RunResult,
)
from nearkv_sim.cosim.stalls import Stalls
from nearkv_sim.cosim.words import pack_words, unpack_words

__all__ = [
    "CompiledComponent",
    "CosimBuildError",
    "CosimContractError",
    "CosimDeadlock",
    "CosimError",
    "CosimSurplus",
    "FlagStats",
    "PortStats",
    "RunResult",
    "Stalls",
    "pack_words",
    "unpack_words",
]
