"""AXI4 and AXI4-Lite interfaces by the names that every tool infers, seen from the manager.

Arm IHI 0022H, chapters A2 and B1. Exported flat, a member `m_axi_gmem` of a component becomes the ports
`m_axi_gmem_araddr` and so on.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Module, Value
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.spec.formats import is_power_of_two

PAGE_BYTES = 4096  # a burst must not cross a multiple (A3.4.1)
MAX_BURST_BEATS = 256  # INCR (A3.4.1)
BURST_INCR = 1
CACHE_MODIFIABLE = 0b0011  # normal, non-cacheable, bufferable: interconnects may merge and widen (A4.4)
RESPONSE_BITS = 2
LITE_DATA_BYTES = 4


class Response(IntEnum):
    """RRESP and BRESP (A3.4.4)."""

    OKAY = 0
    EXOKAY = 1  # of exclusive accesses, which nobody here makes
    SLVERR = 2
    DECERR = 3


def check_bus_bytes(bus_bytes: int) -> None:
    """Raise ValueError unless AXI4 has a data bus of that width and a beat of it fits every page."""
    if not (is_power_of_two(bus_bytes) and 4 <= bus_bytes <= 128):
        raise ValueError(f"bus_bytes is {bus_bytes}; allowed: a power of two from 4 to 128")


def axi_lite(address_bits: int) -> Signature:
    """AXI4-Lite with 32-bit data; protection bits are left out, since nothing here depends on them."""
    return Signature(
        {
            "awaddr": Out(address_bits),
            "awvalid": Out(1),
            "awready": In(1),
            "wdata": Out(8 * LITE_DATA_BYTES),
            "wstrb": Out(LITE_DATA_BYTES),
            "wvalid": Out(1),
            "wready": In(1),
            "bresp": In(RESPONSE_BITS),
            "bvalid": In(1),
            "bready": Out(1),
            "araddr": Out(address_bits),
            "arvalid": Out(1),
            "arready": In(1),
            "rdata": In(8 * LITE_DATA_BYTES),
            "rresp": In(RESPONSE_BITS),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def axi_read(address_bits: int, bus_bytes: int) -> Signature:
    """The two read channels of AXI4, with an identifier of one bit."""
    return Signature(
        {
            **_address_channel("ar", address_bits),
            "rid": In(1),
            "rdata": In(8 * bus_bytes),
            "rresp": In(RESPONSE_BITS),
            "rlast": In(1),
            "rvalid": In(1),
            "rready": Out(1),
        }
    )


def axi_write(address_bits: int, bus_bytes: int) -> Signature:
    """The three write channels of AXI4, with an identifier of one bit."""
    return Signature(
        {
            **_address_channel("aw", address_bits),
            "wdata": Out(8 * bus_bytes),
            "wstrb": Out(bus_bytes),
            "wlast": Out(1),
            "wvalid": Out(1),
            "wready": In(1),
            "bid": In(1),
            "bresp": In(RESPONSE_BITS),
            "bvalid": In(1),
            "bready": Out(1),
        }
    )


def _address_channel(prefix: str, address_bits: int) -> dict:
    channel = {
        "id": Out(1),
        "addr": Out(address_bits),
        "len": Out(8),  # beats − 1
        "size": Out(3),  # log2 of the bytes of a beat
        "burst": Out(2),
        "cache": Out(4),
        "prot": Out(3),
        "valid": Out(1),
        "ready": In(1),
    }
    return {prefix + name: member for name, member in channel.items()}


def offer_address(
    m: Module, bus, prefix: str, offers: Value, address: Value, beats: Value, lane_bits: int
) -> None:
    """Drive the address channel `prefix` ("ar", "aw") of `bus`: a burst that is offered stays until taken.

    Args:
        m: module that gets the channel's registers.
        bus: interface with an address channel, as `axi_read` and `axi_write` describe.
        prefix: of the channel's members.
        offers: one bit: a burst is to be offered; only while the channel is empty or being taken.
        address, beats: of that burst.
        lane_bits: log2 of the bytes of a beat.

    """

    def member(name: str) -> Value:
        return getattr(bus, prefix + name)

    with m.If(offers):
        m.d.sync += [member("valid").eq(1), member("addr").eq(address), member("len").eq(beats - 1)]
    with m.Elif(member("ready")):
        m.d.sync += member("valid").eq(0)
    m.d.comb += [
        member("size").eq(lane_bits),
        member("burst").eq(BURST_INCR),
        member("cache").eq(CACHE_MODIFIABLE),
    ]
