"""What a drive is made of."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nearkv_sim.hardware.pcie_config import PcieLinkConfig, require_integer

__all__ = ["SsdConfig"]

COLLECTOR_SUPERBLOCKS = 2  # only the collector may open the last free ones: one it needs, one for power cuts
_ONE_SECOND_PS = 10**12  # a longer latency is a mistaken unit
_MAY_BE_0 = (
    "mapping_cache_bytes",
    "read_buffer_bytes",
    "read_buffer_min_bytes",
    "command_ps",
    "read_firmware_ps",
    "write_firmware_ps",
    "command_interval_ps",
    "max_programs",
)


@dataclass(frozen=True, kw_only=True)
class SsdConfig:
    """Geometry, timing and firmware of one drive. Raises ValueError for a value outside its range.

    NAND
        channels, dies_per_channel, planes_per_die, blocks_per_plane, pages_per_block, page_bytes: geometry.
        dies_per_chip: dies of which the controller keeps only one busy; 1 where it interleaves all of them.
        read_latency_ps: array to register, by page type (lowest bit of the cell first): its length is the
            number of bits in a cell. Pages of one word line are numbered one after the other.
        program_latency_ps: one word line of all planes of a die (`program_unit_bytes`) in one go.
        max_programs: program units under way at once in the whole drive (its power budget); 0: every die's.
        erase_latency_ps: one block of all planes of a die.
        channel_bytes_per_s: data rate of a channel's bus, which all its dies share.
        command_ps: command and address cycles of a read, a program or an erase, on the channel.

    Map
        mapping_unit_bytes: what the map addresses; a smaller write is padded to it (read-modify-write).
        logical_bytes: what the host sees. What the NAND has beyond is over-provisioning.
        mapping_cache_bytes: map entries held in DRAM; 0: the whole map is.
        mapping_entry_bytes: of one unit in that cache.
        mapping_read_bytes: carried over the channel when an entry is missing.

    Controller
        read_firmware_ps, write_firmware_ps: work on one command, added to its latency.
        command_interval_ps: shortest time between two commands (1 / the most commands per second).
        read_buffer_bytes: host reads kept in DRAM; 0: none are.
        read_buffer_min_bytes: shorter reads neither use nor fill it.
        write_buffer_bytes: writes acknowledged before they are in NAND.
        power_loss_protection: capacitors write that buffer out when power fails, so a flush costs nothing.
        gc_low_superblocks, gc_high_superblocks: collection starts below the first and stops at the second.

    Host side
        pcie_generation, pcie_lanes, max_payload_bytes: of the drive's link.
        max_transfer_bytes: largest NVMe command (MDTS).
    """

    channels: int
    dies_per_channel: int
    planes_per_die: int
    blocks_per_plane: int
    pages_per_block: int
    page_bytes: int
    read_latency_ps: tuple[int, ...]
    program_latency_ps: int
    erase_latency_ps: int
    channel_bytes_per_s: int
    command_ps: int
    mapping_unit_bytes: int
    logical_bytes: int
    read_firmware_ps: int
    write_firmware_ps: int
    command_interval_ps: int
    write_buffer_bytes: int
    power_loss_protection: bool
    pcie_generation: int
    pcie_lanes: int
    max_payload_bytes: int
    max_transfer_bytes: int
    dies_per_chip: int = 1
    max_programs: int = 0
    mapping_cache_bytes: int = 0
    mapping_entry_bytes: int = 8
    mapping_read_bytes: int = 512
    read_buffer_bytes: int = 0
    read_buffer_min_bytes: int = 0
    gc_low_superblocks: int = 4
    gc_high_superblocks: int = 6

    def __post_init__(self) -> None:
        """Refuse what no drive can be."""
        for field in fields(self):
            if field.name not in ("read_latency_ps", "power_loss_protection"):
                high = _ONE_SECOND_PS if field.name.endswith("_ps") else 2**50
                require_integer(field.name, getattr(self, field.name), int(field.name not in _MAY_BE_0), high)
        if not isinstance(self.power_loss_protection, bool):
            raise ValueError(
                f"power_loss_protection is {self.power_loss_protection!r}; allowed: true or false"
            )
        if not isinstance(self.read_latency_ps, tuple) or not 1 <= len(self.read_latency_ps) <= 4:
            raise ValueError(f"read_latency_ps is {self.read_latency_ps!r}; allowed: a list of 1 to 4")
        for latency_ps in self.read_latency_ps:
            require_integer("read_latency_ps", latency_ps, 1, _ONE_SECOND_PS)
        self.link_config()
        for name, value, divisor, what in (
            ("planes_per_die * page_bytes", self.row_bytes, self.mapping_unit_bytes, "mapping_unit_bytes"),
            ("logical_bytes", self.logical_bytes, self.mapping_unit_bytes, "mapping_unit_bytes"),
            ("max_transfer_bytes", self.max_transfer_bytes, 4096, "4 KiB"),
            ("pages_per_block", self.pages_per_block, self.cell_bits, "the bits of a cell"),
            ("dies_per_channel", self.dies_per_channel, self.dies_per_chip, "dies_per_chip"),
        ):
            if value % divisor:
                raise ValueError(f"{name} is {value}; allowed: a multiple of {what}, here {divisor}")
        if not COLLECTOR_SUPERBLOCKS < self.gc_low_superblocks < self.gc_high_superblocks:
            raise ValueError(
                f"gc_low_superblocks, gc_high_superblocks are {self.gc_low_superblocks},"
                f" {self.gc_high_superblocks}; allowed: from {COLLECTOR_SUPERBLOCKS + 1}, the first below the"
                " second"
            )
        usable_bytes = (self.blocks_per_plane - self.gc_high_superblocks) * self.superblock_bytes
        if self.logical_bytes > usable_bytes:
            raise ValueError(
                f"logical_bytes is {self.logical_bytes}; allowed: up to {usable_bytes}, all superblocks but"
                f" the {self.gc_high_superblocks} that garbage collection keeps free"
            )
        # When the host waits for space, all but the collector's superblocks and its open one are closed.
        closed = self.blocks_per_plane - COLLECTOR_SUPERBLOCKS - 1
        gaining_bytes = closed * (self.superblock_bytes - self.program_unit_bytes)
        if self.logical_bytes > gaining_bytes:
            raise ValueError(
                f"logical_bytes is {self.logical_bytes}; allowed: up to {gaining_bytes}, so that one of"
                f" {closed} superblocks always gains a program unit when it is collected"
            )
        if self.write_buffer_bytes < 2 * self.program_unit_bytes:
            raise ValueError(
                f"write_buffer_bytes is {self.write_buffer_bytes}; allowed: at least two program units,"
                f" {2 * self.program_unit_bytes}: one that fills and one that is programmed"
            )

    @property
    def dies(self) -> int:
        """All dies; die `i` is on channel `i % channels`."""
        return self.channels * self.dies_per_channel

    @property
    def cell_bits(self) -> int:
        """Bits in a cell, which is also the number of page types."""
        return len(self.read_latency_ps)

    @property
    def row_bytes(self) -> int:
        """The same page of all planes of a die: read into the registers at once."""
        return self.planes_per_die * self.page_bytes

    @property
    def program_unit_bytes(self) -> int:
        """A word line of all planes of a die: programmed at once."""
        return self.row_bytes * self.cell_bits

    @property
    def superblock_bytes(self) -> int:
        """The same block of every plane of every die: allocated and erased together."""
        return self.dies * self.row_bytes * self.pages_per_block

    @property
    def nand_bytes(self) -> int:
        """Everything there is, over-provisioning included."""
        return self.superblock_bytes * self.blocks_per_plane

    def link_config(self) -> PcieLinkConfig:
        """The drive's own PCIe link."""
        return PcieLinkConfig(
            generation=self.pcie_generation,
            lanes=self.pcie_lanes,
            max_payload_bytes=self.max_payload_bytes,
        )
