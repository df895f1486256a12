"""`ModelMachine`: a machine file with a model behind every name.

Formula of a transfer over stages 1…S (source, links, target) in pieces of 4 KiB:
    time = max_k T_k(n) + Σ_{j ≠ k} T_j(min(n, 4 KiB)),
the longest stage for everything, every other for the piece that fills or drains the pipeline. T_k is the
stage's own time, packet by packet for PCIe.
"""

from __future__ import annotations

from pathlib import Path

from nearkv.machine import (
    LinkDescription,
    MachineDescription,
    ProcessorDescription,
    TierDescription,
    Timing,
    read_machine,
)
from nearkv.machine_record import MachineRecord, RecordedMachine
from nearkv_sim.hardware.machine_devices import MemoryConfig, PathConfig, memory_stage, path_stage
from nearkv_sim.hardware.machine_gather import gather_timing
from nearkv_sim.hardware.machine_stage import Stage, pipelined
from nearkv_sim.hardware.machine_units import (
    FP16_BYTES,
    NearMemoryConfig,
    NearMemoryUnit,
    RooflineUnit,
    ScorerConfig,
    ScorerUnit,
    Unit,
)
from nearkv_sim.hardware.model_shapes import require_positive
from nearkv_sim.hardware.profile import Config, named_profile
from nearkv_sim.hardware.roofline import ProcessorConfig
from nearkv_sim.hardware.wear import DriveConfig

MACHINE_FOLDER = Path(__file__).parent / "machines"
_PROCESSOR_KINDS = ("gpu", "cpu", "scorer", "near_memory")


def machine_names() -> list[str]:
    """Names of the machines that ship."""
    return sorted(path.stem for path in MACHINE_FOLDER.glob("*.yaml"))


def open_machine(name: str) -> ModelMachine:
    """Open a machine by name, or a file with a suffix .yaml or .yml.

    Raises:
        ValueError: an unknown name, or a bad file: names it, the key and the reason.

    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        if name not in machine_names():
            raise ValueError(
                f"machine is {name!r}; allowed: {', '.join(machine_names())}, or a file with suffix .yaml"
            )
        path = MACHINE_FOLDER / f"{name}.yaml"
    description = read_machine(path)
    try:
        return ModelMachine(path.stem, description)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


class ModelMachine(RecordedMachine):
    """A described machine.

    Attributes:
        memories: device of every tier.
        paths: device of every link.
        units: compute by name.
        sources: where each number comes from, by "part: parameter".

    Raises ValueError for an unknown profile or a tier larger than its devices.

    """

    def __init__(self, name: str, description: MachineDescription) -> None:
        """Look every profile up."""
        self._name, self._description = name, description
        self.sources: dict[str, str] = {}
        self.memories: dict[str, MemoryConfig | DriveConfig] = {}
        self.paths: dict[str, PathConfig] = {}
        self.units: dict[str, Unit] = {}
        for tier in description.tiers:
            self.memories[tier.name] = self._memory(tier)
        for link in description.links:
            self.paths[link.name] = self._profile(link, "path", PathConfig)
            self._link_stage(link, outward=True)  # refuses a peer link without its drive
        for processor in description.processors:
            self.units[processor.name] = self._unit(processor)

    @property
    def name(self) -> str:
        """Stem of the file."""
        return self._name

    @property
    def description(self) -> MachineDescription:
        """What the file says."""
        return self._description

    def transfer(self, source: str, target: str, nbytes: int) -> Timing:
        """Copy `nbytes`; see the formula above."""
        require_positive("nbytes", nbytes)
        if source == target:
            raise ValueError(f"target is {target!r}, like source; allowed: another tier")
        stages = self.stages(source, target)
        return pipelined({stage.name: stage.time_ps(nbytes) for stage in stages}, stages, nbytes)

    def gather(self, source: str, target: str, nbytes: int, piece_bytes: int, region_bytes: int) -> Timing:
        """Copy scattered pieces: the formula above with times of `machine_gather`."""
        return gather_timing(self.stages(source, target), nbytes, piece_bytes, region_bytes)

    def compute(self, processor: str, flops: int, nbytes: int) -> Timing:
        """Roofline of the processors' shares."""
        require_positive("flops", flops)
        require_positive("nbytes", nbytes)
        unit = self.unit(processor)
        if not isinstance(unit, RooflineUnit):
            raise ValueError(f"processor is {processor!r}, which runs no kernels; allowed: a GPU or CPU")
        busy = unit.kernel_ps(flops, nbytes)
        return Timing(max(busy.values()), nbytes, busy, flops)

    def attend(self, processor: str, tokens: int, query_heads: int, kv_heads: int, head_dim: int) -> Timing:
        """Units and, where they sit outside the memory, the reading of each row once."""
        for name, value in (("tokens", tokens), ("kv_heads", kv_heads), ("head_dim", head_dim)):
            require_positive(name, value)
        unit = self.unit(processor)
        if not isinstance(unit, NearMemoryUnit):
            raise ValueError(f"processor is {processor!r}, which is no PIM unit; allowed: near_memory")
        if query_heads < 1 or query_heads % kv_heads:
            raise ValueError(f"query_heads is {query_heads}; allowed: a multiple of {kv_heads} KV heads")
        busy = dict(unit.attention_ps(tokens, query_heads, head_dim))
        nbytes = 2 * FP16_BYTES * tokens * kv_heads * head_dim
        if not self.in_memory(processor):
            stage = self._end(self.tier_of(processor), write=False)
            busy[stage.name] = stage.time_ps(nbytes)
        return Timing(max(busy.values()), nbytes, busy, 2 * 2 * tokens * query_heads * head_dim)

    def scan(self, processor: str, nbytes: int, *, code_bits: int = 8) -> Timing:
        """Score `nbytes` of keys that lie in the processor's tier: unit and memory work side by side."""
        require_positive("nbytes", nbytes)
        unit = self.unit(processor)
        busy = dict(unit.scan_ps(nbytes, code_bits))
        if not self.in_memory(processor):
            stage = self._end(self.tier_of(processor), write=False)
            busy[stage.name] = stage.time_ps(nbytes)
        # FP16 rows: a multiply-add, two operations, per value of two bytes. A card's power counts its own.
        flops = 0 if isinstance(unit, ScorerUnit) else nbytes
        return Timing(max(busy.values()), nbytes, busy, flops)

    def start_record(self) -> MachineRecord:
        """Open a record of energy, temperature and wear."""
        from nearkv_sim.hardware.machine_state import MachineState  # which names this class

        return MachineState(self)

    def stages(self, source: str, target: str) -> list[Stage]:
        """Source, links and target of a transfer, in order; a peer link stands for its two ends as well."""
        links = self._description.path(source, target)
        here = source
        middle: list[Stage] = []
        for link in links:
            outward = here == link.inner
            here = link.outer if outward else link.inner
            middle.append(self._link_stage(link, outward=outward))
        joined = {end for link in links if self.paths[link.name].peer for end in (link.inner, link.outer)}
        first, last = (self._end(name, write) for name, write in ((source, False), (target, True)))
        return [
            *([] if source in joined else [first]),
            *middle,
            *([] if target in joined else [last]),
        ]

    def _end(self, name: str, write: bool) -> Stage:
        count = self._description.tier(name).count
        return memory_stage(name, count, self.memories[name], write=write)

    def _link_stage(self, link: LinkDescription, *, outward: bool) -> Stage:
        outer = self.memories[link.outer]
        drive = outer if isinstance(outer, DriveConfig) else None
        return path_stage(link.wires, link.count, self.paths[link.name], outward=outward, drive=drive)

    def unit(self, name: str) -> Unit:
        """A processor's model; ValueError lists the known ones."""
        if name not in self.units:
            raise ValueError(f"processor is {name!r}; allowed: {', '.join(self.units)}")
        return self.units[name]

    def tier_of(self, processor: str) -> str:
        """Tier a processor sits at."""
        self.unit(processor)
        return next(p.tier for p in self._description.processors if p.name == processor)

    def in_memory(self, processor: str) -> bool:
        """Whether the processor sits inside a DRAM, behind no pins; the units of a drive do not."""
        is_drive = isinstance(self.memories[self.tier_of(processor)], DriveConfig)
        return isinstance(self.unit(processor), NearMemoryUnit) and not is_drive

    def _memory(self, tier: TierDescription) -> MemoryConfig | DriveConfig:
        config: MemoryConfig | DriveConfig
        if tier.profile.startswith("drive/"):
            config = self._profile(tier, "drive", DriveConfig)
        else:
            config = self._profile(tier, "memory", MemoryConfig)
        most = tier.count * config.capacity_bytes
        if tier.capacity_bytes > most:
            raise ValueError(
                f"capacity_bytes of {tier.name} is {tier.capacity_bytes}; allowed: at most {most}, what"
                f" {tier.count} × {tier.profile} hold"
            )
        return config

    def _unit(self, processor: ProcessorDescription) -> Unit:
        kind = processor.profile.partition("/")[0]
        if kind not in _PROCESSOR_KINDS:
            raise ValueError(
                f"profile of {processor.name} is {processor.profile!r}; allowed kinds:"
                f" {', '.join(_PROCESSOR_KINDS)}"
            )
        name, count = processor.name, processor.count
        if kind == "scorer":
            return ScorerUnit(name, count, self._profile(processor, kind, ScorerConfig))
        if kind == "near_memory":
            return NearMemoryUnit(name, count, self._profile(processor, kind, NearMemoryConfig))
        return RooflineUnit(name, count, self._profile(processor, kind, ProcessorConfig))

    def _profile(
        self,
        part: TierDescription | ProcessorDescription | LinkDescription,
        kind: str,
        config_type: type[Config],
    ) -> Config:
        given, separator, name = part.profile.partition("/")
        if not separator or given != kind:
            raise ValueError(f"profile of {part.name} is {part.profile!r}; allowed: {kind}/NAME")
        try:
            profile = named_profile(kind, name, config_type)
        except ValueError as error:
            raise ValueError(f"profile of {part.name}: {error}") from None
        for parameter, source in profile.sources.items():
            self.sources[f"{part.name}: {parameter}"] = source
        return profile.config
