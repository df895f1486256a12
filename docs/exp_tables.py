"""Area of the exp units at equal accuracy: rewrites the table in exp-unit.md from what Yosys counts.

python docs/exp_area.py
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from amaranth.lib import wiring

from nearkv_hdl.arith.exp_lookup import Exp2Lookup, Exp2Segments
from nearkv_hdl.arith.exp_polynomial import Exp2Polynomial
from nearkv_hdl.arith.exp_shift_add import Exp2ShiftAdd
from nearkv_hdl.arith.exp_unit import ExpUnit
from nearkv_hdl.spec.design import Family
from nearkv_hdl.spec.exp_table import POLYNOMIALS
from nearkv_hdl.verilog import to_rtlil
from nearkv_sim.formal.engine import run_yosys
from nearkv_sim.golden import exp
from nearkv_sim.golden.exp_fit import minimax
from nearkv_sim.golden.exp_oracle import FRACTIONS, ORACLE_BITS, oracle
from nearkv_sim.synthesis.resources import Resources, count_resources

DOCUMENT = Path(__file__).with_name("exp-unit.md")
PASSES = {
    Family.ULTRASCALE_PLUS: "synth_xilinx -family xcup -flatten -noiopad -noclkbuf",
    Family.ECP5: "synth_ecp5",
}
# Without DSP blocks a product is a row of adders on carry chains: half the LUTs of Yosys' own multiplier and
# two thirds of its Booth multiplier. Tables become multiplexers before synthesis would make them so, which
# gives the same netlist in less time.
LUTS_ONLY = " -nodsp -nobram"
LUTS_ONLY_PREPARE = """\
hierarchy -top top
proc
flatten
opt
wreduce
techmap -map rows.v
memory -nomap
memory_map -rom-only
simplemap t:$mux
opt_expr
opt_merge
opt_clean
"""
ROWS = """\
(* techmap_celltype = "$mul" *)
module rows (A, B, Y);
parameter A_SIGNED = 0, B_SIGNED = 0, A_WIDTH = 1, B_WIDTH = 1, Y_WIDTH = 1;
input [A_WIDTH-1:0] A;
input [B_WIDTH-1:0] B;
output [Y_WIDTH-1:0] Y;
wire _TECHMAP_FAIL_ = A_SIGNED || B_SIGNED;
localparam W = A_WIDTH + 1;
wire [W*B_WIDTH-1:0] row;
wire [A_WIDTH+B_WIDTH-1:0] product;
assign row[W-1:0] = A & {A_WIDTH{B[0]}};
assign product[0] = row[0];
genvar i;
generate for (i = 1; i < B_WIDTH; i = i + 1) begin
  assign row[W*i +: W] = row[W*(i-1)+1 +: A_WIDTH] + (A & {A_WIDTH{B[i]}});
  assign product[i] = row[W*i];
end endgenerate
assign product[A_WIDTH+B_WIDTH-1:B_WIDTH] = row[W*(B_WIDTH-1)+1 +: A_WIDTH];
assign Y = product;
endmodule
"""


@dataclass(frozen=True)
class Class:
    """Units that all keep one bound on the relative error; the first is the polynomial."""

    bound: float
    note: str
    cores: dict[str, Callable[[], wiring.Component]]


CLASSES = (
    Class(
        0.0021,
        "degree 2",
        {
            "polynomial, degree 2": lambda: Exp2Polynomial(2),
            "lookup, 2^8 entries": lambda: Exp2Lookup(8),
            "segments, 2^3": lambda: Exp2Segments(3),
            "shift-and-add, 10 digits": lambda: Exp2ShiftAdd(10),
        },
    ),
    Class(
        0.001,
        "the claim's own bound and degree",
        {
            "polynomial, degree 6": lambda: Exp2Polynomial(6),
            "polynomial, degree 3": lambda: Exp2Polynomial(3),
            "lookup, 2^9 entries": lambda: Exp2Lookup(9),
            "segments, 2^3": lambda: Exp2Segments(3),
            "shift-and-add, 12 digits": lambda: Exp2ShiftAdd(12),
        },
    ),
    Class(
        0.00011,
        "degree 3, the default",
        {
            "polynomial, degree 3": lambda: Exp2Polynomial(3),
            "lookup, 2^12 entries": lambda: Exp2Lookup(12),
            "segments, 2^5": lambda: Exp2Segments(5),
            "shift-and-add, 14 digits": lambda: Exp2ShiftAdd(14),
        },
    ),
    Class(
        0.00002,
        "degree 4",
        {
            "polynomial, degree 4": lambda: Exp2Polynomial(4),
            "segments, 2^7": lambda: Exp2Segments(7),
            "shift-and-add, 18 digits": lambda: Exp2ShiftAdd(18),
        },
    ),
)


def count(core: Callable[[], wiring.Component], family: Family, *, luts_only: bool) -> Resources:
    """Resources of ExpUnit around a core."""
    prepare, options = (LUTS_ONLY_PREPARE, LUTS_ONLY) if luts_only else ("", "")
    with tempfile.TemporaryDirectory(prefix="nearkv-area-") as name:
        folder = Path(name)
        (folder / "design.il").write_text(to_rtlil(ExpUnit(core())))
        (folder / "rows.v").write_text(ROWS)
        run_yosys(
            f"read_rtlil design.il\n{prepare}{PASSES[family]}{options} -top top\n"
            "tee -q -o cells.json stat -json\n",
            folder,
        )
        cells = json.loads((folder / "cells.json").read_text())["design"]["num_cells_by_type"]
    return count_resources({kind: n for kind, n in cells.items() if kind != "$scopeinfo"}, family)


def rows(members: Class) -> list[str]:
    """Table rows of one accuracy class; the first unit is what the others are compared with."""
    lines = []
    reference: dict[Family, float] = {}
    for name, core in members.cores.items():
        accuracy = core().accuracy.max_relative_error
        if accuracy > members.bound:
            raise ValueError(f"{name} errs by {accuracy}; allowed in its class: {members.bound}")
        cells = [f"{100 * accuracy:.4f} %", str(ExpUnit(core()).latency)]
        for family in Family:
            blocks, plain = (count(core, family, luts_only=only) for only in (False, True))
            cells.append(f"{blocks.luts:g} + {blocks.dsps:g} DSP + {blocks.brams:g} BRAM")
            cells.append(f"{blocks.flip_flops:g}")
            cells.append(f"**{plain.luts:g}**")
            reference.setdefault(family, plain.luts)
            cells.append(f"{reference[family] / plain.luts:.2f}")
        lines.append(f"| {100 * members.bound:g} % | {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def errors() -> list[str]:
    """Table of the polynomials' errors."""
    powers = np.array([value / (1 << ORACLE_BITS) for value in oracle()])
    lines = [
        "| degree | latency | coefficients c_1 … c_d, 17 fraction bits | best | mantissa | FP16 |",
        "|---|---|---|---|---|---|",
    ]
    for degree, polynomial in POLYNOMIALS.items():
        twin = exp.Exp2Polynomial(degree)
        bits = exp.ExpToFp16().convert(*exp.ExpUnit(twin).evaluate(FRACTIONS))
        numbers = bits.astype(np.uint16).view(np.float16).astype(np.float64)
        _, level = minimax(degree)
        bounds = (polynomial.accuracy.max_relative_error, float(np.abs(numbers / powers - 1).max()))
        cells = [
            str(degree),
            str(Exp2Polynomial(degree).latency),
            ", ".join(map(str, polynomial.coefficients)),
            f"{100 * float(level):.2e} %",
            *(f"{math.ceil(1e7 * bound) / 1e5:.5f} %" for bound in bounds),  # bounds are rounded up
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def area() -> list[str]:
    """Table of all units at equal accuracy."""
    head = [
        "| bound | unit | error | latency"
        + " | {0} | {0} FF | {0} LUT-eq | {0} ratio".format("UltraScale+")
        + " | {0} | {0} FF | {0} LUT-eq | {0} ratio |".format("ECP5"),
        "|---|---|---|---" + "|---" * 8 + "|",
    ]
    body = [line for members in CLASSES for line in rows(members)]
    tools = f"Amaranth {version('amaranth')}, Yosys (pyosys) {version('pyosys')}; " + "; ".join(
        f"`{passes}`" for passes in PASSES.values()
    )
    return [*head, *body, "", f"{tools}; LUT-eq with `{LUTS_ONLY.strip()}` added."]


def write(name: str, lines: list[str]) -> None:
    """Replace what stands between the markers of that name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = DOCUMENT.read_text().partition(begin)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


def main() -> None:
    """Rewrite both tables."""
    write("errors", errors())
    write("area", area())


if __name__ == "__main__":
    main()
