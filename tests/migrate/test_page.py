"""What docs/migration.md says of the engine's Verilog: its example, arguments, ports, bits and bytes."""

from __future__ import annotations

import inspect
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
from amaranth.hdl import Shape
from amaranth.lib import data

from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import BLOCK_ENTRY_BYTES, BlockEntry, Move, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
VERILOG = PAGE.partition("\n## Verilog\n")[2].partition("\n## ")[0]
DDR = PIM_LAYOUTS["ddr_pim"]
PORTS = "port | kind | bits | what"


def rows(text: str, header: str) -> list[list[str]]:
    """Cells of the table under that header."""
    lines = text.partition(f"| {header} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The engine that the page's example builds, and the Verilog it writes."""
    (source,) = re.findall(r"```python\n(.*?)```", VERILOG, re.DOTALL)
    folder = tmp_path_factory.mktemp("example")
    script = folder / "example.py"
    script.write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        engine = runpy.run_path(str(script))["engine"]
    return engine, (folder / "migration_engine.v").read_text(encoding="utf-8")


def test_flags_and_codes_have_their_values():
    flags = {name: int(value) for value, name, _ in rows(PAGE, "value | flag | meaning")}
    assert flags == {"COPY": Move.COPY, **Move.__members__}
    codes = {}
    for values, names, _ in rows(PAGE, "value | code | meaning"):
        codes |= dict(zip(names.split(", "), map(int, values.split(", ")), strict=True))
    assert codes == dict(MoveCode.__members__)


def test_ports_are_those_of_the_verilog(example):
    engine, verilog = example
    written = {name.strip("`"): (kind, int(bits)) for name, kind, bits, _ in rows(VERILOG, PORTS)}
    assert list(written) == list(engine.signature.members)
    module = verilog.partition("module nearkv_migration_engine(")[2].partition("endmodule")[0]
    ports = {
        name: (way, 1 + int(msb or 0))
        for way, msb, name in re.findall(r"^  (input|output) (?:\[(\d+):0\] )?(\w+);", module, re.MULTILINE)
    }
    for name, (kind, bits) in written.items():
        way = "input" if kind.endswith("in") or kind == "AXI4 read" else "output"
        port = {"stream": "_payload", "AXI4 read": "_rdata", "AXI4 write": "_wdata"}
        suffix = next((end for start, end in port.items() if kind.startswith(start)), "")
        assert ports[name + suffix] == (way, bits), name
    others = {name for name in ports if not name.startswith(tuple(written))}
    assert others == {"clk", "rst"}


def bits_of(layout: data.StructLayout, prefix: str = "", base: int = 0) -> dict[str, str]:
    """Bits of every field, those of a field's own under `field.name`."""
    found = {}
    for name, field in layout:
        if isinstance(field.shape, data.StructLayout):
            found |= bits_of(field.shape, f"{name}.", base + field.offset)
        else:
            low = base + field.offset
            found[prefix + name] = f"{low + Shape.cast(field.shape).width - 1}:{low}"
    return found


def test_bits_of_both_payloads(example):
    table = rows(VERILOG, "stream | field | bits | what")
    for stream in ("descriptor", "completion"):
        written = {field: bits for name, field, bits, _ in table if name == stream}
        assert written == bits_of(getattr(example[0].shapes, stream))


def test_an_entry_of_the_table():
    places = [(int(byte), int(size)) for byte, size, _ in rows(VERILOG, "byte | bytes | what")]
    entry = BlockEntry(7 * DDR.block_bytes, 0x89ABCDEF).pack()
    parts = [int.from_bytes(entry[byte : byte + size], "little") for byte, size in places]
    assert parts == [7 * DDR.block_bytes + 1, 0x89ABCDEF, 0]
    assert sum(size for _, size in places) == BLOCK_ENTRY_BYTES
    assert f"aligned to its {DDR.block_bytes:,} bytes" in VERILOG
    defaults = MoveShapes(DDR)
    table_bytes = BLOCK_ENTRY_BYTES << defaults.slot_bits + defaults.block_bits
    assert f"so this table has {table_bytes >> 20} MiB" in VERILOG


def test_arguments_have_their_defaults_and_limits():
    """Every argument has a row; of those with two limits, both are allowed and nothing beyond."""
    table = {
        re.findall(r"`(\w+)`", cell)[-1]: (default, allowed)
        for cell, default, allowed in rows(VERILOG, "argument | here | allowed")
    }
    parameters = inspect.signature(MigrationEngine).parameters
    assert list(table) == [*(f.name for f in fields(MoveShapes)), *list(parameters)[1:]]
    for name in ("queue", "patience_cycles", "burst_beats", "memory_latency_cycles"):
        assert int(table[name][0]) == parameters[name].default
    for name in ("slot_bits", "block_bits", "address_bits", "tiles_bits"):
        default, allowed = table[name]
        assert int(default) == getattr(MoveShapes(DDR), name)
        least, most = map(int, re.match(r"(\d+) to (\d+)", allowed).groups())
        for value in (least, most):
            assert getattr(MoveShapes(DDR, **{name: value}), name) == value
        for value in (least - 1, most + 1):
            with pytest.raises(ValueError, match=f"{name} is {value}; allowed: {least} to {most}"):
                MoveShapes(DDR, **{name: value})


def test_widths_of_buses():
    for name, most in (("ddr_pim", 64), ("hbm_pim", 64), ("ssd_pim", 64), ("tiny_pim", 16)):
        shapes = MoveShapes(PIM_LAYOUTS[name])
        for width in (4, most):
            engine = MigrationEngine(shapes, width, (width,))
            assert len(engine.m_axi_far_write_0.wdata) == 8 * width
        for width in (2, 2 * most):
            with pytest.raises(ValueError, match=f"is {width}"):
                MigrationEngine(shapes, width, (width,))
