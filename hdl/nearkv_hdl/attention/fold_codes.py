"""Second pass of folding: codes, and the bias that they ask for."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree, delayed, shape_of
from nearkv_hdl.attention.dot_product import accumulated
from nearkv_hdl.attention.fold_config import TWICE_MEAN, anchor, fold_lanes, half_units, mean_dot
from nearkv_hdl.attention.fold_headers import descriptor_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS, CODE, SHIFT, TWICE_LOW_NIBBLE_MIDDLE
from nearkv_hdl.spec.layout import KeyFormat


def folded_head_layout(design: DesignConfig) -> data.StructLayout:
    """What both passes know of a query head of a block before its codes."""
    return data.StructLayout(
        {
            "shift": SHIFT.width,
            "anchor": shape_of(anchor(design)),
            "block_end": 1,  # the last head of its block
            "descriptor": descriptor_layout(),
        }
    )


class FoldCodes(wiring.Component):
    """Rounds half units to codes and works out a head's bias.

    Formula: code = (half_units + 2^e) >> (e + 1) = rhu(p, unit + e);
    bias = anchor − rhu(Σ code·(2·mean, in INT4 − 15) << e, 1).
    Timing: codes `code_latency` = 2 cycles after their operands (shifted, rounded), the bias `latency` =
    6 + log2(fold_lanes) after the head's last (product, tree, accumulator, shift and rounding, subtraction).
    Interval 1, free-running.
    Numerics: exact; `o_overflow` if the bias does not fit 32 bits, which it does for the `unit` of these
    blocks.

    Args:
        design: formats and channels per cycle.

    Members:
        i_valid, i_first, i_last: operands of a head; its first; its last.
        i_head: that head, with every operand.
        half_units, mean: of `fold_lanes` channels.
        o_valid, o_head_end, o_block_end, codes: of these channels, `code_latency` cycles later; the last of
            their head; of their block.
        o_done, o_head, o_bias, o_overflow: a head has been folded.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = fold_lanes(design)
        self._tree = AdderTree(design.query_code.product(TWICE_MEAN), self.lanes)
        super().__init__(
            {
                "i_valid": In(1),
                "i_first": In(1),
                "i_last": In(1),
                "i_head": In(folded_head_layout(design)),
                "half_units": In(shape_of(half_units(design))).array(self.lanes),
                "mean": In(shape_of(CODE)).array(self.lanes),
                "o_valid": Out(1),
                "o_head_end": Out(1),
                "o_block_end": Out(1),
                "codes": Out(shape_of(design.query_code)).array(self.lanes),
                "o_done": Out(1),
                "o_head": Out(folded_head_layout(design)),
                "o_bias": Out(shape_of(BIAS)),
                "o_overflow": Out(1),
            }
        )

    @property
    def code_latency(self) -> int:
        """Cycles from operands to codes."""
        return 2

    @property
    def latency(self) -> int:
        """Cycles from a head's last operands to its bias."""
        return self.code_latency + 1 + self._tree.latency + 3

    @property
    def interval(self) -> int:
        """Cycles between two groups of channels."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = self._tree
        design = self.design
        flags, heads = [(self.i_valid, self.i_first, self.i_last)], [self.i_head]
        for rank in range(1, self.latency + 1):
            valid, before = Signal(name=f"valid{rank}"), flags[-1]
            m.d.sync += valid.eq(before[0])
            flags.append((valid, delayed(m, before[1], f"first{rank}"), delayed(m, before[2], f"last{rank}")))
            head = Signal(folded_head_layout(design), name=f"head{rank}", reset_less=True)
            m.d.sync += head.eq(heads[-1])
            heads.append(head)

        valid, _, last = flags[self.code_latency]
        m.d.comb += [
            self.o_valid.eq(valid),
            self.o_head_end.eq(last),
            self.o_block_end.eq(last & heads[self.code_latency].block_end),
        ]

        is_int4 = self.i_head.descriptor.key_format == KeyFormat.INT4
        for lane, (half, mean) in enumerate(zip(self.half_units, self.mean, strict=True)):
            # Floors nest: half_units >> e, then one more bit with rounding.
            shifted = (half >> self.i_head.shift)[: design.query_code.width + 1].as_signed()
            rounded = (delayed(m, shifted, f"shifted{lane}") + 1) >> 1
            code = delayed(m, rounded[: design.query_code.width].as_signed(), f"code{lane}")
            twice = ((mean << 1) - Mux(is_int4, TWICE_LOW_NIBBLE_MIDDLE, 0))[: TWICE_MEAN.width].as_signed()
            twice = delayed(m, delayed(m, twice, f"twice{lane}_1"), f"twice{lane}_2")
            m.d.comb += [self.codes[lane].eq(code), tree.i[lane].eq(delayed(m, code * twice, f"dot{lane}"))]

        rank = self.code_latency + 1 + tree.latency
        valid, first, _ = flags[rank]
        dot = accumulated(m, mean_dot(design), tree.o, valid, first, "mean_dot")
        # rhu(dot << e, 1): only at e = 0 is there a half to round.
        shift = heads[rank + 1].shift
        correction = delayed(m, ((dot << shift) + 1) >> 1, "correction")
        exact = heads[rank + 2].anchor - correction
        bias = delayed(m, exact, "bias")
        done, _, last = flags[self.latency]
        m.d.comb += [
            self.o_done.eq(done & last),
            self.o_head.eq(heads[self.latency]),
            self.o_bias.eq(bias),
            self.o_overflow.eq(self.o_done & (bias != self.o_bias)),
        ]
        return m
