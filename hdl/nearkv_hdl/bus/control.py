"""The control side of the scoring kernel: AXI4-Lite, its registers, its job control."""

from __future__ import annotations

from amaranth.hdl import Module, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_lite
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS, AxiLiteSubordinate
from nearkv_hdl.bus.csr import RegisterBlock, register_shape
from nearkv_hdl.bus.job_control import AMOUNTS, JobControl
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig

ARGUMENTS = data.StructLayout({argument.name.lower(): register_shape(argument) for argument in reg.ARGUMENTS})
_CRCS = (reg.STREAMED_CRC32C, reg.WRITTEN_CRC32C)
_JOB_PORTS = ("start", "abort", "finish", "fault_valid", "fault", "interrupt")


class ControlPort(wiring.Component):
    """What the host sees of the kernel, and the few signals by which the kernel answers.

    Formula: the register table of `nearkv_hdl.spec.registers`, as RegisterBlock and JobControl give it
    behaviour. The arguments are copied when ap_start is written, so that the host may prepare the next job's
    while one runs.
    Timing: latency 3 from a write's address and data to `start`: subordinate, register, job control. A
    register access takes 2 cycles, see AxiLiteSubordinate.
    Numerics: see JobControl.
    Reset: everything, by RESET too, except accesses in flight on the bus.

    Args:
        design: what the identity registers say.

    Members:
        s_axi_control: the bus.
        interrupt: level, see JobControl.
        arguments: of the job in flight, stable from `start` on.
        streamed_crc32c, written_crc32c: shown to the host as they are.
        others: see JobControl.

    """

    def __init__(self, design: DesignConfig) -> None:
        self._bus = AxiLiteSubordinate()
        self._registers = RegisterBlock(reg.REGISTERS, reg.identity_values(design))
        self._job = JobControl()
        members = {"s_axi_control": In(axi_lite(ADDRESS_BITS)), "arguments": Out(ARGUMENTS)}
        members |= {crc.name.lower(): In(register_shape(crc)) for crc in _CRCS}
        members |= {name: self._job.signature.members[name] for name in (*_JOB_PORTS, *AMOUNTS)}
        super().__init__(members)

    @property
    def latency(self) -> int:
        """Cycles from the write of ap_start to `start`."""
        return self._bus.latency - 1 + self._registers.latency + self._job.latency

    @property
    def interval(self) -> int:
        """Cycles between two accesses of one direction."""
        return max(self._bus.interval, self._registers.interval)

    def elaborate(self, platform):
        m = Module()
        m.submodules.bus = bus = self._bus
        m.submodules.registers = registers = self._registers
        m.submodules.job = job = self._job
        wiring.connect(m, wiring.flipped(self.s_axi_control), bus.s_axi)
        wiring.connect(m, bus.access, registers.access)

        # Between registers and job control every signal has the same name on both sides.
        ours = {*self.signature.members, "clear", "access"}
        for name, member in registers.signature.members.items():
            if name in ours or name not in job.signature.members:
                continue
            source, sink = (job, registers) if member.flow is In else (registers, job)
            m.d.comb += Value.cast(getattr(sink, name)).eq(Value.cast(getattr(source, name)))
        for name in (*_JOB_PORTS, *AMOUNTS):
            is_ours = self.signature.members[name].flow is Out
            sink, source = (self, job) if is_ours else (job, self)
            m.d.comb += Value.cast(getattr(sink, name)).eq(Value.cast(getattr(source, name)))
        m.d.comb += [
            getattr(registers, crc.name.lower()).eq(getattr(self, crc.name.lower())) for crc in _CRCS
        ]

        m.d.comb += registers.clear.eq(job.abort)
        with m.If(registers.ctrl_command.ap_start & ~registers.ctrl.ap_start):
            m.d.sync += [
                self.arguments[argument.name.lower()].eq(getattr(registers, argument.name.lower()))
                for argument in reg.ARGUMENTS
            ]
        return m
