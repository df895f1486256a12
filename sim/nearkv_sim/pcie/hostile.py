"""A transport `pcie` on which jobs are bent behind the driver's back."""

from __future__ import annotations

from typing import Any

from nearkv.device.descriptors import DESCRIPTOR_DTYPE
from nearkv.device.errors import DeviceTimeout
from nearkv.device.transport import Bytes
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES
from nearkv_sim.pcie.fault_trial import BadCall, HostileJob, NativeTest, Reset
from nearkv_sim.pcie.faults import Fault, FaultPlan
from nearkv_sim.pcie.transport import PcieTransport


class HostileTransport(PcieTransport):
    """Carries out the provocations of fault trials; well-behaved until `provoke`, and after `behave`.

    Args:
        args, kwargs: as of PcieTransport.

    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.behave()
        super().__init__(*args, **kwargs)

    def behave(self) -> None:
        """End all provocations but those of a fault plan."""
        self._job = HostileJob()
        self._reset_after_ps: int | None = None

    def provoke(self, provocation: Fault | HostileJob | Reset | BadCall | NativeTest) -> None:
        """Let it happen from now on; a bad call is its caller's to make.

        Raises ValueError for a test of the native mode, which has a bench of its own.
        """
        match provocation:
            case Fault():
                self.inject(FaultPlan((provocation,)))
            case HostileJob():
                self._job = provocation
            case Reset():
                self._reset_after_ps = provocation.after_ps
            case NativeTest():
                raise ValueError(f"provocation is {provocation}; allowed: those of this transport")

    def write_register(self, offset: int, value: int) -> None:
        """Store a word, or what has become of it."""
        if self._reset_after_ps == 0 and offset == reg.CTRL.offset:
            self._reset()
        change = self._job.words.get(offset)
        super().write_register(offset, value if change is None else change(value))

    def write_memory(self, address: int, data: Bytes) -> None:
        """Copy to the card; only images of jobs are written here, and a descriptor comes first."""
        if self._job.descriptor:
            data = data.copy()
            descriptor = data[:DESCRIPTOR_BYTES].view(DESCRIPTOR_DTYPE)
            for name, change in self._job.descriptor.items():
                descriptor[name] = change(int(descriptor[name][0]))
        super().write_memory(address, data)

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Wait for an interrupt, and if it is due write RESET meanwhile."""
        after_ps = self._reset_after_ps
        if after_ps is None:
            super().wait_interrupt(timeout_ps)
            return
        try:
            super().wait_interrupt(after_ps)
        except DeviceTimeout:
            self._reset()
            super().wait_interrupt(timeout_ps - after_ps)
        else:
            self._reset()

    def _reset(self) -> None:
        self._reset_after_ps = None
        super().write_register(reg.RESET.offset, reg.RESET.mask("reset"))
