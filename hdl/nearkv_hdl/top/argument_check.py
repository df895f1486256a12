"""Check of a job's arguments, in the order of ErrorCode."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, PAIRS_PER_LINE, SCORE_BYTES
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.job_check import ALIGN_BYTES, HEADS_BITS

_LINE_SHIFT = PAIRS_PER_LINE.bit_length() - 1


class ArgumentCheck(wiring.Component):
    """Says what is wrong with a job's arguments, before anything is read.

    Formula: the first of BLOCK_COUNT, HEADS, HEAD_DIM, TOP_K, RESULT_ADDRESS, DESCRIPTOR_ADDRESS whose rule
    in the register table is broken. Where the device's memory ends is not known here: only ranges that leave
    the address space are found; the bus answers for others.
    Timing: latency 2 from stable arguments, for products with the heads and for the verdict.
    Numerics: unsigned, exact.

    Args:
        design: query group, head dimensions, tokens of a block, top-k units.

    Members:
        arguments: of the job.
        fault: code NONE if all is well.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        super().__init__({"arguments": In(ARGUMENTS), "fault": Out(Fault)})

    @property
    def latency(self) -> int:
        """Cycles from stable arguments to `fault`."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two jobs."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design, job = self.design, self.arguments
        scores = Signal(len(job.block_count) + HEADS_BITS, reset_less=True)
        capacity, block_tokens = design.topk_capacity, design.block_tokens
        is_selection = job.flags.top_k
        # Both are in range, or TOP_K is what is wrong.
        tokens = (job.block_count * block_tokens)[: capacity.bit_length() or 1]
        lines = Signal(capacity.bit_length() + HEADS_BITS, reset_less=True)
        pairs = Mux(job.k < tokens, job.k, tokens)[: len(tokens)]
        m.d.sync += [
            scores.eq(job.block_count * job.heads[:HEADS_BITS]),
            lines.eq(((pairs + PAIRS_PER_LINE - 1) >> _LINE_SHIFT) * job.heads[:HEADS_BITS]),
        ]
        result_bytes = Mux(is_selection, lines * ALIGN_BYTES, scores * (block_tokens * SCORE_BYTES))
        too_many = (job.k > capacity) | (job.block_count > capacity // block_tokens)
        k_wrong = Mux(is_selection, (job.k == 0) | too_many, job.k != 0)
        # One more bit than an address: a range may end where the address space does.
        result_end = job.result_address + result_bytes
        list_end = job.descriptor_address + job.block_count * DESCRIPTOR_BYTES
        top = 1 << 64
        code, address = Signal(8), Signal(64)
        with m.If(job.block_count == 0):
            m.d.comb += code.eq(ErrorCode.BLOCK_COUNT)
        with m.Elif((job.heads == 0) | (job.heads > design.query_group)):
            m.d.comb += code.eq(ErrorCode.HEADS)
        with m.Elif(Value.cast(sum(job.head_dim == d for d in design.head_dims)) == 0):
            m.d.comb += code.eq(ErrorCode.HEAD_DIM)
        with m.Elif(k_wrong):
            m.d.comb += code.eq(ErrorCode.TOP_K)
        with m.Elif(
            (job.result_address % ALIGN_BYTES != 0) | (result_end > top) | (job.result_bytes < result_bytes)
        ):
            m.d.comb += [code.eq(ErrorCode.RESULT_ADDRESS), address.eq(job.result_address)]
        with m.Elif((job.descriptor_address % ALIGN_BYTES != 0) | (list_end > top)):
            m.d.comb += [
                code.eq(ErrorCode.DESCRIPTOR_ADDRESS),
                address.eq(job.descriptor_address),
            ]
        m.d.sync += [self.fault.code.eq(code), self.fault.address.eq(address)]
        return m
