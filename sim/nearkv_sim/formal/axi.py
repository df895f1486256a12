"""Rules of AXI4 managers as assertions in a bench, whatever is behind the port.

A rule looks at the port alone, and at the commands that the component takes. `bus` is an interface as
`nearkv_hdl.bus.axi` describes it, or anything with its members; `channel` is "ar" or "aw". Small addresses
suffice for a proof: the arithmetic is the same at every width.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amaranth.hdl import Assert, Assume, Cat, Module, Signal, Value

from nearkv_hdl.stream.contract import StreamContract
from nearkv_sim.formal.bench import Bench
from nearkv_sim.formal.engine import gate_paths

ADDRESS_MEMBERS = ("id", "addr", "len", "size", "burst", "cache", "prot")
WRITE_DATA_MEMBERS = ("data", "strb", "last")


def altered(bus: Any, **members: Any) -> SimpleNamespace:
    """The port of a component that is broken: other values on some of its members."""
    return SimpleNamespace(**{name: getattr(bus, name) for name in bus.signature.members} | members)


def handshakes_behind(bench: Bench, *values: Any) -> set[str]:
    """Free valids and readies of the bench that any of some bits follows within a cycle (`gate_paths`)."""
    seen = {f"seen_{i}": Signal(name=f"seen_{i}") for i in range(len(values))}
    bench.module.d.comb += [signal.eq(value) for signal, value in zip(seen.values(), values, strict=True)]
    sources = [name for name in bench.free if name.endswith(("ready", "valid"))]
    ports = [*bench.free.values(), *bench.observed.values(), *seen.values()]
    return {source for _, source in gate_paths(bench.module, ports, list(seen), sources)}


def hold(m: Module, value: Any) -> None:
    """Assume that a free value stands still, whatever it is; a reset does not move it."""
    value = Value.cast(value)
    before = Signal(len(value), reset_less=True)
    started = Signal(reset_less=True)
    m.d.sync += [before.eq(value), started.eq(1)]
    with m.If(started):
        m.d.comb += Assume(value == before)


def assert_handshake(bench: Bench, bus: Any, channel: str) -> None:
    """What is offered stays as it is till it is taken (Arm IHI 0022H, A3.2.1); `channel` may be "w"."""
    names = WRITE_DATA_MEMBERS if channel == "w" else ADDRESS_MEMBERS
    payload = Cat(Value.cast(getattr(bus, channel + name)) for name in names)
    bench.add(
        f"{channel}_handshake",
        StreamContract(len(payload)),
        valid=getattr(bus, f"{channel}valid"),
        ready=getattr(bus, f"{channel}ready"),
        payload=payload,
    )


def assert_block(bench: Bench, bus: Any, channel: str, bus_bytes: int, block_beats: int) -> None:
    """All beats of a burst lie in one aligned block of so many: in one page, if the block is in one."""
    lane_bits, place_bits = (bus_bytes - 1).bit_length(), (block_beats - 1).bit_length()
    place = getattr(bus, f"{channel}addr")[lane_bits : lane_bits + place_bits]
    with bench.module.If(getattr(bus, f"{channel}valid")):
        bench.module.d.sync += Assert(
            place + getattr(bus, f"{channel}len") < block_beats, f"{channel}: a burst leaves its block"
        )


def assert_window(
    bench: Bench,
    bus: Any,
    channel: str,
    bus_bytes: int,
    *,
    taken: Any,
    base: Any,
    nbytes: Any,
    identifier: int | None = None,
) -> None:
    """A beat that no command's window reaches is in no burst.

    The beat is any that stands still; assumed is that the windows of all commands taken leave it out. So
    bursts stay within the windows that came with the commands, however these change from one to the next.

    Args:
        bench: gets the assertion and the free beat.
        bus, channel, bus_bytes: the port.
        taken: a command is taken in this cycle.
        base, nbytes: the window that goes with it.
        identifier: of the bursts to be watched; None for all.

    """
    m = bench.module
    lane_bits = (bus_bytes - 1).bit_length()
    address = getattr(bus, f"{channel}addr")
    beat = bench.free_signal(f"{channel}_beat_{identifier}", len(address) - lane_bits)
    hold(m, beat)
    # Of full width: the end of a window may be the end of all addresses.
    end, is_within = Signal(len(address) + 1), Signal()
    m.d.comb += [
        end.eq(base + nbytes),
        is_within.eq((nbytes != 0) & (base[lane_bits:] <= beat) & ((beat << lane_bits) < end)),
    ]
    with m.If(taken):
        m.d.comb += Assume(~is_within)
    watched = getattr(bus, f"{channel}valid")
    if identifier is not None:
        watched &= getattr(bus, f"{channel}id") == identifier
    first = address[lane_bits:]
    with m.If(watched):
        m.d.sync += Assert(
            (beat < first) | (beat > first + getattr(bus, f"{channel}len")),
            f"{channel}: a burst outside the windows",
        )
