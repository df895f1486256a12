"""Data paths as gates: a pipeline with its registers read as wires, for proofs of what it computes.

Reading registers as wires keeps the function of a pipeline all of whose paths have the same number of ranks;
that they have is what a component's simulation with a new operand every cycle shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.back import rtlil
from amaranth.hdl import Module, Signal, Value

from nearkv_sim.formal.engine import DEFAULT_TIMEOUT_SECONDS, FormalError, Proof, Status, run_abc, run_yosys

_WIRES = """\
(* techmap_celltype = "$dff $dffe $sdff $sdffe $sdffce" *)
module register_as_wire(CLK, EN, SRST, D, Q);
  parameter WIDTH = 1;
  parameter CLK_POLARITY = 1;
  parameter EN_POLARITY = 1;
  parameter SRST_POLARITY = 1;
  parameter SRST_VALUE = 0;
  input CLK, EN, SRST;
  input [WIDTH-1:0] D;
  output [WIDTH-1:0] Q;
  assign Q = D;
endmodule
"""

_LOWER = """\
read_rtlil design.il
hierarchy -top top
proc
flatten
opt_clean
techmap -map wires.v
opt -full
techmap
opt -fast
simplemap
opt -full
aigmap
opt_clean
delete top/w:clk top/w:rst
write_aiger design.aig
write_aiger -ascii -map design.aim design.aag
"""


@dataclass(frozen=True)
class Netlist:
    """And-inverter graph of a combinational function.

    Args:
        inputs: by port name the literals of its bits, lowest first.
        outputs: the same for outputs.
        gates: (result, left, right) literals, operands first.

    A literal is twice the number of a net, plus 1 for its inverse; 0 is false.

    """

    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    gates: tuple[tuple[int, int, int], ...]

    def restricted(self, names: Collection[str]) -> Netlist:
        """The function of these inputs alone, all others being 0."""
        inputs = {name: literals for name, literals in self.inputs.items() if name in names}
        same: dict[int, int] = {0: 0} | {literal: literal for bits in inputs.values() for literal in bits}
        same |= {literal: 0 for bits in self.inputs.values() for literal in bits if literal not in same}

        def reduced(literal: int) -> int:
            return same[literal & ~1] ^ (literal & 1)

        gates = []
        for result, *operands in self.gates:
            left, right = sorted(reduced(literal) for literal in operands)
            if left == 0 or left ^ right == 1:
                same[result] = 0
            elif left == 1 or left == right:
                same[result] = right
            else:
                same[result] = result
                gates.append((result, left, right))
        outputs = {name: tuple(reduced(bit) for bit in bits) for name, bits in self.outputs.items()}
        return Netlist(inputs, outputs, tuple(gates))

    def evaluate(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs for many patterns of the inputs at once.

        Args:
            values: for every input an array [patterns] of integers, taken modulo 2^width.

        Returns per output an int64 array [patterns] of unsigned values.

        Raises ValueError unless the names are those of the inputs.

        """
        if set(values) != set(self.inputs):
            raise ValueError(f"values are for {', '.join(values)}; allowed: for {', '.join(self.inputs)}")
        patterns = len(next(iter(values.values())))
        nets: dict[int, Any] = {0: np.zeros((patterns + 7) // 8, np.uint8)}
        for name, literals in self.inputs.items():
            for bit, literal in enumerate(literals):
                nets[literal] = np.packbits((values[name] >> bit) & 1)

        def value(literal: int) -> Any:
            return ~nets[literal ^ 1] if literal & 1 else nets[literal]

        for result, left, right in self.gates:
            nets[result] = value(left) & value(right)
        results = {}
        for name, literals in self.outputs.items():
            number = np.zeros(patterns, np.int64)
            for bit, literal in enumerate(literals):
                number |= np.unpackbits(value(literal), count=patterns).astype(np.int64) << bit
            results[name] = number
        return results


def _lower(unit: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], folder: Path) -> None:
    """Write the AIGER file of a unit, its ports by name, registers as wires."""
    m = Module()
    m.submodules.unit = unit
    ports = []
    for name, target in inputs.items():
        free = Signal(len(Value.cast(target)), name=name)
        m.d.comb += Value.cast(target).eq(free)
        ports.append(free)
    for name, source in outputs.items():
        seen = Signal(len(Value.cast(source)), name=name)
        m.d.comb += seen.eq(Value.cast(source))
        ports.append(seen)
    (folder / "design.il").write_text(rtlil.convert(m, ports=ports, emit_src=False))
    (folder / "wires.v").write_text(_WIRES)
    run_yosys(_LOWER, folder)


def netlist_of(unit: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Netlist:
    """Gates of a pipeline.

    Args:
        unit: the component; used up by it.
        inputs: the values to drive by name; everything else must be driven inside.
        outputs: the values to see by name.

    Raises FormalError if Yosys fails, as it does for a unit whose registers form a loop.

    """
    with tempfile.TemporaryDirectory(prefix="nearkv-netlist-") as name:
        folder = Path(name)
        _lower(unit, inputs, outputs, folder)
        lines = (folder / "design.aag").read_text().splitlines()
        places = [line.split() for line in (folder / "design.aim").read_text().splitlines()]
    _, _, n_inputs, n_latches, n_outputs, n_gates = lines[0].split()[:6]
    if int(n_latches):
        raise FormalError(f"{n_latches} registers are left; allowed: pipelines without feedback")
    split = int(n_inputs)
    rows = lines[1 : 1 + split + int(n_outputs) + int(n_gates)]  # names and comments follow
    numbers = [[int(literal) for literal in row.split()] for row in rows]
    heads = {"input": numbers[:split], "output": numbers[split : split + int(n_outputs)]}
    gates = numbers[split + int(n_outputs) :]

    def ports(kind: str) -> dict[str, tuple[int, ...]]:
        bits: dict[str, dict[int, int]] = {}
        for what, position, bit, name in places:
            if what == kind:
                bits.setdefault(name, {})[int(bit)] = heads[kind][int(position)][0]
        return {name: tuple(literals[bit] for bit in sorted(literals)) for name, literals in bits.items()}

    return Netlist(ports("input"), ports("output"), tuple((g[0], g[1], g[2]) for g in gates))


def prove_equal(
    unit: Any,
    inputs: Mapping[str, Any],
    pairs: Sequence[tuple[Any, Any]],
    *,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Proof:
    """Prove by SAT that pairs of values of a pipeline are equal for every input.

    Args:
        unit: the component; used up by it.
        inputs: the values to drive by name.
        pairs: values of the unit and what they should be, as expressions over its ports.
        timeout_seconds: when ABC gives up.

    """
    differ: Any = 0
    for mine, wanted in pairs:
        differ = differ | (mine != wanted)
    with tempfile.TemporaryDirectory(prefix="nearkv-netlist-") as name:
        folder = Path(name)
        _lower(unit, inputs, {"differ": differ}, folder)
        log = run_abc(folder, f"&r design.aig; &cec -m -T {timeout_seconds}")
    if "are equivalent" in log:
        return Proof(Status.PROVED, "equal for every input")
    if "NOT EQUIVALENT" in log:
        return Proof(Status.REFUTED, "an input gives different values")
    return Proof(Status.UNKNOWN, f"undecided: {log.strip()[-200:]}")
