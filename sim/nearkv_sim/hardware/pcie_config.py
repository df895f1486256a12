"""What a PCIe link has negotiated, its latencies, and named links.

Sources: PCI Express Base Specification 5.0; Neugebauer et al., "Understanding PCIe performance for end host
networking" (pcie-bench), SIGCOMM 2018.
"""

from dataclasses import dataclass
from fractions import Fraction

MEGATRANSFERS_PER_S = {1: 2500, 2: 5000, 3: 8000, 4: 16000, 5: 32000}  # per lane; Base Spec, data rates
# The Base Spec's "AckFactor" in tenths for payloads up to 256 bytes, and above. Tables 3-7 to 3-9 (Ack) and
# 2-46 to 2-48 (UpdateFC) hold (payload + 28) * factor / lanes + internal delay, in symbol times.
ACK_FACTOR_TENTHS = {1: (14, 10), 2: (14, 10), 4: (14, 10), 8: (25, 10), 16: (30, 20)}
ACK_TLP_OVERHEAD_BYTES = 28
INTERNAL_DELAY_SYMBOLS = {1: 19, 2: 70, 3: 115, 4: 115, 5: 115}


def require_integer(name: str, value: object, low: int, high: int) -> None:
    """ValueError unless `value` is an integer (not a bool or float) from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; allowed is an integer from {low} to {high}")


def _require_choice(name: str, value: object, allowed: tuple[int, ...]) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed is one of {', '.join(map(str, allowed))}")


@dataclass(frozen=True, kw_only=True)
class PcieLinkConfig:
    """Negotiated link parameters and latencies. Raises ValueError for a value outside its range.

    Latencies are those of an unloaded system without serialisation, which the link adds packet by packet:

    * `one_way_latency_ps`: last bit on the wire to visible at the far side, in either direction. Assumed
      150 ns: a posted write, and a quarter of a DMA read, of current servers.
    * `root_complex_read_latency_ps`: read request arrived to first completion ready. 300 ns makes an unloaded
      64-byte DMA read about 600 ns (pcie-bench: median 547 ns on a Haswell server, above 1000 ns elsewhere).
    * `mmio_turnaround_latency_ps`: the device's and the CPU's share of a load. Assumed 600 ns, so that a load
      takes about 900 ns.
    * `interrupt_latency_ps`: MSI-X write arrived to first instruction of the handler. Assumed 3 us, within
      the 2 to 5 us usual on Linux with shallow idle states.
    * `switch_hop_ps`: first byte in to first byte out of one of the `switch_hops` cut-through switches on the
      way. 130 ns lies within the 110 to 150 ns usual of current switches (recalled, unconfirmed).
    """

    generation: int = 3
    lanes: int = 4
    max_payload_bytes: int = 256  # what server root ports usually negotiate
    max_read_request_bytes: int = 512  # power-on default of Device Control (Base Spec 7.5.3.4)
    read_completion_boundary_bytes: int = 64  # default of Link Control; 128 only if the root port says so
    tags: int = 256  # reads in flight: eight-bit tags; beyond needs the ten-bit tags of generation 4
    one_way_latency_ps: int = 150_000
    root_complex_read_latency_ps: int = 300_000
    mmio_turnaround_latency_ps: int = 600_000
    interrupt_latency_ps: int = 3_000_000
    switch_hops: int = 0
    switch_hop_ps: int = 130_000
    link_cap_percent: int = 100  # share of the wire that this link may use

    def __post_init__(self) -> None:
        """Refuse what no link can be."""
        _require_choice("generation", self.generation, tuple(MEGATRANSFERS_PER_S))
        _require_choice("lanes", self.lanes, tuple(ACK_FACTOR_TENTHS))
        sizes_bytes = (128, 256, 512, 1024, 2048, 4096)
        _require_choice("max_payload_bytes", self.max_payload_bytes, sizes_bytes)
        _require_choice("max_read_request_bytes", self.max_read_request_bytes, sizes_bytes)
        _require_choice("read_completion_boundary_bytes", self.read_completion_boundary_bytes, (64, 128))
        require_integer("tags", self.tags, 1, 768 if self.generation >= 4 else 256)
        one_second_ps = 10**12  # longer is a mistaken unit
        require_integer("one_way_latency_ps", self.one_way_latency_ps, 0, one_second_ps)
        require_integer("root_complex_read_latency_ps", self.root_complex_read_latency_ps, 0, one_second_ps)
        require_integer("mmio_turnaround_latency_ps", self.mmio_turnaround_latency_ps, 0, one_second_ps)
        require_integer("interrupt_latency_ps", self.interrupt_latency_ps, 0, one_second_ps)
        require_integer("switch_hops", self.switch_hops, 0, 31)  # far deeper than any server
        require_integer("switch_hop_ps", self.switch_hop_ps, 0, one_second_ps)
        require_integer("link_cap_percent", self.link_cap_percent, 1, 100)

    @property
    def byte_time_ps(self) -> Fraction:
        """Exact time of one packet byte on all lanes, in ps, line code and clock compensation included.

        A cap stretches it: the link then behaves as one that is slower by that factor.
        """
        bits_ps = Fraction(8 * 10**6, MEGATRANSFERS_PER_S[self.generation] * self.lanes)
        # 8b/10b with 4 skip symbols per 1538, or 128b/130b with one skip block per 375 blocks: the longest
        # intervals that the Base Spec allows (4.2.7).
        code = Fraction(10, 8) * Fraction(1542, 1538)
        if self.generation >= 3:
            code = Fraction(130, 128) * Fraction(376, 375)
        return bits_ps * code * Fraction(100, self.link_cap_percent)

    @property
    def path_latency_ps(self) -> int:
        """One way including all switches, without serialisation."""
        return self.one_way_latency_ps + self.switch_hops * self.switch_hop_ps

    @property
    def dllp_interval_symbols(self) -> int:
        """Longest wait from a received TLP to its Ack and UpdateFC, in symbol times (of one lane)."""
        factor_tenths = ACK_FACTOR_TENTHS[self.lanes][self.max_payload_bytes > 256]
        covered_bytes = self.max_payload_bytes + ACK_TLP_OVERHEAD_BYTES
        return covered_bytes * factor_tenths // (10 * self.lanes) + INTERNAL_DELAY_SYMBOLS[self.generation]


PRESETS = {
    "smartssd": PcieLinkConfig(generation=3, lanes=4),  # Samsung SmartSSD data sheet: PCIe 3.0 x4
    "alveo_u50": PcieLinkConfig(generation=3, lanes=16),  # Xilinx DS965: Gen3 x16 or Gen4 x8
    "gen4_x4": PcieLinkConfig(generation=4, lanes=4),
    "gen4_x16": PcieLinkConfig(generation=4, lanes=16),
    "gen5_x16": PcieLinkConfig(generation=5, lanes=16, tags=768),  # Intel R-Tile user guide 683501: 768 reads
}
