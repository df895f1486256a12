"""Every exp unit keeps the stream contract and never hangs: proofs."""

import pytest

from nearkv_hdl.arith.exp_fp16 import ExpToFp16
from nearkv_hdl.arith.exp_lookup import Exp2Lookup, Exp2Segments
from nearkv_hdl.arith.exp_polynomial import Exp2Polynomial
from nearkv_hdl.arith.exp_shift_add import Exp2ShiftAdd
from nearkv_hdl.arith.exp_unit import ExpUnit
from nearkv_sim.formal import Status, prove_order, prove_progress, prove_stream_contract

# The relation between a token count and that many valid bits takes too long to find in deeper pipelines.
DEEPEST_FOR_ALL_TIME = 8
BOUND = 24


UNITS = {
    "degree 2": lambda: ExpUnit(Exp2Polynomial(2)),
    "degree 3 with a tag": lambda: ExpUnit(Exp2Polynomial(3), tag_bits=2),
    "degree 6": lambda: ExpUnit(Exp2Polynomial(6)),
    "lookup": lambda: ExpUnit(Exp2Lookup(8), tag_bits=1),
    "segments": lambda: ExpUnit(Exp2Segments(5), tag_bits=1),
    "shift-and-add": lambda: ExpUnit(Exp2ShiftAdd(14)),
    "to FP16": lambda: ExpToFp16(tag_bits=2),
}


@pytest.fixture(params=UNITS.values(), ids=UNITS.keys())
def make(request):
    return request.param


def test_contract(make):
    assert prove_stream_contract(make).status is Status.PROVED


def test_progress(make):
    latency = make().latency
    bound = None if latency <= DEEPEST_FOR_ALL_TIME else BOUND
    proof = prove_progress(make, within=latency, capacity=latency, bound=bound)
    assert proof.status is (Status.PROVED if bound is None else Status.BOUNDED)


@pytest.mark.parametrize("name", ["degree 3 with a tag", "lookup", "segments", "to FP16"])
def test_tags_leave_in_order_each_once(name):
    make = UNITS[name]
    assert prove_order(make, capacity=make().latency, field="tag").status is Status.PROVED
