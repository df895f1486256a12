"""What every component of a PIM design may cost: the last accepted synthesis."""

from __future__ import annotations

from nearkv_sim.synthesis.resources import Resources

# Measured with `nearkv synth` and Yosys 0.70 on UltraScale+; tolerance as for scorers. The named devices have
# their reduction units and their division in common.
_REDUCTION_UNIT_OF_4 = Resources(luts=7_229, flip_flops=6_143, dsps=51, carries=729)
_REDUCTION_UNIT_OF_2 = Resources(luts=7_059, flip_flops=5_920, dsps=51, carries=727)
_DIVISION = Resources(luts=8_179, flip_flops=4_512, carries=912)
PIM_BUDGETS: dict[str, dict[str, Resources]] = {
    "tiny_pim": {
        "processing unit": Resources(luts=3_811, flip_flops=2_946, dsps=13, carries=367),
        "reduction unit of 2": Resources(luts=2_078, flip_flops=1_828, dsps=15, carries=211),
        "final division": Resources(luts=2_256, flip_flops=1_791, carries=228),
    },
    "hbm_pim": {
        "processing unit": Resources(luts=12_176, flip_flops=9_477, dsps=25, brams=0.5, carries=1_079),
        "reduction unit of 4": _REDUCTION_UNIT_OF_4,
        "reduction unit of 2": _REDUCTION_UNIT_OF_2,
        "final division": _DIVISION,
    },
    "ddr_pim": {
        "processing unit": Resources(luts=4_593, flip_flops=4_719, dsps=13, brams=1, carries=383),
        "reduction unit of 4": _REDUCTION_UNIT_OF_4,
        "reduction unit of 2": _REDUCTION_UNIT_OF_2,
        "final division": _DIVISION,
    },
    "ssd_pim": {
        "processing unit": Resources(luts=12_179, flip_flops=9_485, dsps=25, brams=1, carries=1_080),
        "reduction unit of 4": _REDUCTION_UNIT_OF_4,
        "reduction unit of 2": _REDUCTION_UNIT_OF_2,
        "final division": _DIVISION,
    },
}
# The RTL of the small device in one netlist, which takes Yosys two minutes; larger ones are only computed.
TINY_PIM_RTL = Resources(luts=23_564, flip_flops=19_057, dsps=97, carries=2_329)
