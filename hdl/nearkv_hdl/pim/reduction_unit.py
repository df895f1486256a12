"""The reduction unit: partial results of its children in, their merged partial out."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.exp_polynomial import Exp2Polynomial
from nearkv_hdl.arith.exp_unit import ExpUnit
from nearkv_hdl.pim.partial import MAXIMUM_LANE, MAXIMUM_WORD, TOTAL_LANE, partial_layout
from nearkv_hdl.pim.scaled_sum import FACTOR_SHIFT, ScaledSum
from nearkv_hdl.spec.attention import DEFAULT_DEGREE, LOGIT, SUM, WEIGHT, Merge
from nearkv_hdl.stream.skid import SkidBuffer


class ReductionUnit(wiring.Component):
    """Merges one partial of each of `fan_in` children, job after job, exactly or exponentially.

    Formula: m' = max m_i. Exact: l' = Σ l_i, o' = Σ o_i, all m_i equal. Exponential: factors 2^(m_i − m')
    from the polynomial unit, l' = Σ rhu(l_i · factor_i), o' = Σ rhu(o_i · factor_i); l stays linear. The
    job's kind is the `merge` bit of the first child's header. Headers that stand alone give the maximum.

    Timing: the children's beats are taken in turn (header of every child, then first beat of every child,
    and so on), one per cycle, and a merged beat leaves `latency` cycles after the last child's. So a job
    takes interval = fan_in · (1 + beats) cycles when exact, and `factor_cycles` + fan_in more when
    exponential. The next level starts on a merged beat at once.
    Stalls: a pause of one child holds the job, since all are needed; a pause of `o` stops the sums under
    their clock enable. No ready depends on its own valid.

    Numerics: exact merge is exact; exponential rounds once per number (½ of the last place of l and o)
    beside the polynomial's error. Neither depends on the order of children, but only the exact merge is
    independent of how tokens are split over them. A sum beyond signed 48 bits raises `o_overflow` and wraps.
    Reset: control and valid bits.

    Args:
        fan_in: children, from 2.
        partial_lanes: sums per beat.
        degree: of the polynomial.

    Members:
        i_0 … i_{fan_in−1}: partials of the children.
        o: merged partials.
        o_mismatch: since reset a job's children differed in kind, length or (exact) maximum.
        o_overflow: since reset a sum did not fit.

    """

    def __init__(self, fan_in: int, partial_lanes: int, degree: int = DEFAULT_DEGREE) -> None:
        if fan_in < 2:
            raise ValueError(f"fan_in is {fan_in}; allowed: from 2")
        if partial_lanes < 2:
            raise ValueError(f"partial_lanes is {partial_lanes}; allowed: from 2, the lanes of a header")
        self.fan_in = fan_in
        self.partial_lanes = partial_lanes
        self._exp = ExpUnit(Exp2Polynomial(degree))
        self._sums = ScaledSum(partial_lanes, fan_in)
        self._skid = SkidBuffer(partial_layout(partial_lanes))
        partials = stream.Signature(partial_layout(partial_lanes))
        super().__init__(
            {f"i_{child}": In(partials) for child in range(fan_in)}
            | {"o": Out(partials), "o_mismatch": Out(1), "o_overflow": Out(1)}
        )

    @property
    def latency(self) -> int:
        """Cycles from the last child's beat to the merged one."""
        return self._sums.latency + self._skid.latency

    @property
    def factor_cycles(self) -> int:
        """Cycles an exponential job waits for its first factor."""
        return self._exp.latency + 1

    def interval(self, partial_beats: int, merge: Merge = Merge.EXACT) -> int:
        """Cycles between two jobs whose partials have that many beats after the header."""
        exact = self.fan_in * (1 + partial_beats)
        return exact if merge is Merge.EXACT else exact + self.factor_cycles + self.fan_in

    def elaborate(self, platform):
        m = Module()
        m.submodules.exp = exp = self._exp
        m.submodules.sums = sums = self._sums
        m.submodules.skid = skid = self._skid
        layout = partial_layout(self.partial_lanes)
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        enable = Signal()
        m.d.comb += sums.enable.eq(enable)

        # Children in turn.
        children = [getattr(self, f"i_{child}") for child in range(self.fan_in)]
        child = Signal(range(self.fan_in))
        beat = Signal(layout)
        offered, wanted, take = Signal(), Signal(), Signal()
        with m.Switch(child):
            for index, source in enumerate(children):
                with m.Case(index):
                    m.d.comb += [
                        beat.eq(source.payload),
                        offered.eq(source.valid),
                        source.ready.eq(wanted),
                    ]
        m.d.comb += take.eq(offered & wanted)
        is_first, is_final = child == 0, child == self.fan_in - 1

        # Header: running maximum, and what an exponential merge needs later.
        header = data.View(MAXIMUM_WORD, beat.data[MAXIMUM_LANE].as_unsigned())
        merge, job_maximum = Signal(reset_less=True), Signal(shape_of(LOGIT), reset_less=True)
        job_last = Signal(reset_less=True)
        job_exponent = Signal(header.value_exponent.shape(), reset_less=True)
        maximum, kind = Signal(shape_of(LOGIT)), Signal()
        higher = header.maximum > job_maximum
        m.d.comb += [
            maximum.eq(Mux(is_first | higher, header.maximum, job_maximum)),
            kind.eq(Mux(is_first, beat.merge, merge)),
        ]
        maxima = [Signal(shape_of(LOGIT), name=f"maximum{c}", reset_less=True) for c in range(self.fan_in)]
        totals = [Signal(shape_of(SUM), name=f"total{c}", reset_less=True) for c in range(self.fan_in)]
        mantissas = [
            Signal(shape_of(WEIGHT), name=f"mantissa{c}", reset_less=True) for c in range(self.fan_in)
        ]
        shifts = [Signal(FACTOR_SHIFT.width, name=f"shift{c}", reset_less=True) for c in range(self.fan_in)]

        # Factors: distances of the maxima go through the polynomial unit one by one.
        asked, known = Signal(range(self.fan_in + 1)), Signal(range(self.fan_in + 1))
        below = Signal(LOGIT.width + 1)
        fraction = Signal(LOGIT.fraction_bits)
        steps = Signal(LOGIT.width + 1 - LOGIT.fraction_bits)
        m.d.comb += [
            below.eq(job_maximum - Array(maxima)[asked]),
            fraction.eq(-below),
            steps.eq((below + ((1 << LOGIT.fraction_bits) - 1)) >> LOGIT.fraction_bits),
            exp.i.payload.x.eq(fraction),
            exp.o.ready.eq(1),
        ]
        with m.If(exp.i.valid & exp.i.ready):
            m.d.sync += asked.eq(asked + 1)
            with m.Switch(asked):
                for index, shift in enumerate(shifts):
                    with m.Case(index):
                        m.d.sync += shift.eq(Mux(steps > FACTOR_SHIFT.max, FACTOR_SHIFT.max, steps))
        with m.If(exp.o.valid):
            m.d.sync += known.eq(known + 1)
            with m.Switch(known):
                for index, mantissa in enumerate(mantissas):
                    with m.Case(index):
                        m.d.sync += mantissa.eq(exp.o.payload.mantissa)

        # What enters the sums in this cycle.
        enters, is_header, is_last = Signal(), Signal(), Signal()
        scaled = Signal()
        m.d.comb += [
            *(sums.x[lane].eq(beat.data[lane]) for lane in range(self.partial_lanes)),
            sums.present.eq(enters),
            sums.first.eq(is_first),
            sums.mantissa.eq(Mux(scaled, Array(mantissas)[child], 1 << WEIGHT.fraction_bits)),
            sums.shift.eq(Mux(scaled, Array(shifts)[child], 0)),
        ]
        step = Signal()
        with m.If(step):
            m.d.sync += child.eq(Mux(is_final, 0, child + 1))
        mismatch = Signal()
        with m.FSM():
            with m.State("headers"):
                m.d.comb += [
                    wanted.eq(enable),
                    step.eq(take),
                    enters.eq(take & ((kind == Merge.EXACT) | beat.last)),
                    is_header.eq(1),
                    is_last.eq(beat.last),
                    mismatch.eq(
                        take
                        & ~is_first
                        & (
                            (beat.merge != merge)
                            | (beat.last != job_last)
                            | ((merge == Merge.EXACT) & ~beat.last & (header.maximum != job_maximum))
                        )
                    ),
                ]
                with m.If(take):
                    m.d.sync += [
                        job_maximum.eq(maximum),
                        merge.eq(kind),
                        job_last.eq(beat.last),
                        job_exponent.eq(header.value_exponent),
                        asked.eq(0),
                        known.eq(0),
                    ]
                    with m.Switch(child):
                        for index in range(self.fan_in):
                            with m.Case(index):
                                m.d.sync += [
                                    maxima[index].eq(header.maximum),
                                    totals[index].eq(beat.data[TOTAL_LANE]),
                                ]
                    with m.If(is_final & ~beat.last):
                        with m.If(kind == Merge.EXACT):
                            m.next = "sums"
                        with m.Else():
                            m.next = "totals"
            with m.State("totals"):
                m.d.comb += [
                    exp.i.valid.eq(asked != self.fan_in),
                    scaled.eq(1),
                    enters.eq(enable & (known > child)),
                    step.eq(enters),
                    is_header.eq(1),
                    sums.x[TOTAL_LANE].eq(Array(totals)[child]),
                ]
                with m.If(enters & is_final):
                    m.next = "sums"
            with m.State("sums"):
                m.d.comb += [
                    wanted.eq(enable),
                    step.eq(take),
                    enters.eq(take),
                    scaled.eq(merge == Merge.EXPONENTIAL),
                    is_last.eq(beat.last),
                    mismatch.eq(take & ~is_first & (beat.last != job_last)),
                ]
                with m.If(take):
                    m.d.sync += job_last.eq(beat.last)
                    with m.If(is_final & beat.last):
                        m.next = "headers"
        with m.If(mismatch):
            m.d.sync += self.o_mismatch.eq(1)

        # Beside the sums travels what identifies a merged beat.
        tag = Signal(data.StructLayout({"header": 1, "last": 1, "merge": 1, "word": MAXIMUM_WORD}))
        m.d.comb += [
            tag.header.eq(is_header),
            tag.last.eq(is_last),
            tag.merge.eq(Mux(wanted & is_header, kind, merge)),
            tag.word.maximum.eq(Mux(wanted, maximum, job_maximum)),
            tag.word.value_exponent.eq(Mux(wanted, header.value_exponent, job_exponent)),
        ]
        valid = enters & is_final
        for rank in range(sums.latency):
            next_tag = Signal(tag.shape(), name=f"tag{rank}", reset_less=True)
            next_valid = Signal(name=f"valid{rank}")
            with m.If(enable):
                m.d.sync += [next_tag.eq(tag), next_valid.eq(valid)]
            tag, valid = next_tag, next_valid
        m.d.comb += [
            enable.eq(~valid | skid.i.ready),
            skid.i.valid.eq(valid),
            skid.i.payload.merge.eq(tag.merge),
            skid.i.payload.last.eq(tag.last),
        ]
        overflows = []
        for lane in range(self.partial_lanes):
            m.d.comb += skid.i.payload.data[lane].eq(sums.o[lane])
            overflows.append(sums.o[lane] != skid.i.payload.data[lane])
        with m.If(tag.header):
            m.d.comb += [
                *(skid.i.payload.data[lane].eq(0) for lane in range(1, self.partial_lanes)),
                skid.i.payload.data[MAXIMUM_LANE].eq(data.View(MAXIMUM_WORD, tag.word.as_value()).as_value()),
            ]
        with m.If(valid & Mux(tag.header, overflows[TOTAL_LANE], _any(overflows))):
            m.d.sync += self.o_overflow.eq(1)
        return m


def _any(bits):
    result = bits[0]
    for bit in bits[1:]:
        result = result | bit
    return result
