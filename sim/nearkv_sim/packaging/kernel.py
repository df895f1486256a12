"""What a packager has to know of the kernel: names of its ports, its arguments, the card it goes to."""

from __future__ import annotations

from dataclasses import dataclass

from nearkv.device.pyxrt_transport import KERNEL_NAME
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import LAYOUT_VERSION
from nearkv_hdl.spec.register_map import WINDOW_BYTES, Access, Register

KERNEL_MODULE = KERNEL_NAME  # XRT knows a kernel by the name of its module
VENDOR, LIBRARY = "nearkv", "kernel"
# A new register table or memory layout is a new interface to the host.
KERNEL_VERSION = f"{reg.REGISTER_VERSION}.{LAYOUT_VERSION}"

CONTROL = "s_axi_control"
MEMORY = "m_axi_gmem"
CLOCK, RESET, INTERRUPT = "ap_clk", "ap_rst_n", "interrupt"
CONTROL_BITS = 32
ADDRESS_BITS = 64
CONTROL_PROTOCOL = "ap_ctrl_chain"
# Warnings of `verilator --lint-only` that the emitted Verilog gives; kernel.core says why they are harmless.
LINT_WAIVERS = ("WIDTH", "CASEINCOMPLETE", "CMPCONST", "UNSIGNED", "SYMRSVDWORD")

# kernel.xml, attribute addressQualifier (AMD UG1393, "RTL Kernel XML File").
_SCALAR, _GLOBAL_MEMORY = 0, 1
_POINTER_SUFFIX = "_ADDRESS"
_MOST_KEY_MASTERS = 2
_C_TYPES = {4: "unsigned int", 8: "unsigned long"}
# IP-XACT knows three kinds of access; what a written 1 does beyond that is in the register's description.
_IP_XACT_ACCESS = {
    Access.READ_WRITE: "read-write",
    Access.READ_ONLY: "read-only",
    Access.WRITE_ONLY: "write-only",
    Access.COMMAND: "read-write",
    Access.CLEAR_ON_READ: "read-only",
    Access.TOGGLE_ON_WRITE: "read-write",
}


@dataclass(frozen=True)
class Card:
    """A card of the XRT flow.

    Attributes:
        name: for readers.
        platform: the Vitis platform to link against.
        memory: memory banks of each of the kernel's masters in v++ syntax; empty where the platform has only
            one memory.

    """

    name: str
    platform: str
    memory: str


# Platforms: AMD UG1393 and UG1702 (examples on U50), Samsung SmartSSD development platform of Vitis 2021.2,
# the last with support for it. 0 to 3 are the U50's first HBM pseudo-channels, 256 MiB each; they share one
# switch, so that no port's way to a bank leads over a lateral connection (AMD PG276).
CARDS = {
    "smartssd_ku15p": Card("Samsung SmartSSD", "xilinx_u2_gen3x4_xdma_gc_2_202110_1", ""),
    "alveo_u50": Card("Alveo U50", "xilinx_u50_gen3x16_xdma_5_202210_1", "HBM[0:3]"),
}


@dataclass(frozen=True)
class Argument:
    """One argument of the kernel, as kernel.xml lists it.

    Attributes:
        index: position, which XRT also takes for `group_id`.
        register: where it lies.
        port: port it belongs to: memory for a pointer, control for a scalar.

    """

    index: int
    register: Register
    port: str

    @property
    def name(self) -> str:
        """Name in kernel.xml."""
        return self.register.name.lower()

    @property
    def is_pointer(self) -> bool:
        """Whether it names device memory, so that the linker must connect the memory port to a bank."""
        return _is_pointer(self.register)

    @property
    def address_qualifier(self) -> int:
        """1 for global memory, 0 for a scalar."""
        return _GLOBAL_MEMORY if self.is_pointer else _SCALAR

    @property
    def c_type(self) -> str:
        """Type for the host."""
        return "void*" if self.is_pointer else _C_TYPES[self.register.size_bytes]


def arguments(design: DesignConfig) -> tuple[Argument, ...]:
    """All arguments in the order of the register table.

    An argument has one port, and a linker connects ports that have arguments: with two key masters the key
    window is the second one's, whatever both read of it. With more there would be ports without any:
    ValueError.
    """
    if design.key_masters > _MOST_KEY_MASTERS:
        raise ValueError(
            f"key_masters is {design.key_masters}; allowed for an XRT kernel: up to {_MOST_KEY_MASTERS},"
            " since every memory port needs an argument"
        )
    *_, last_memory = memory_ports(design.key_masters)

    def port(register: Register) -> str:
        if not _is_pointer(register):
            return CONTROL
        return last_memory if register is reg.KEY_ADDRESS else MEMORY

    return tuple(Argument(index, register, port(register)) for index, register in enumerate(reg.ARGUMENTS))


def _is_pointer(register: Register) -> bool:
    return register.name.endswith(_POINTER_SUFFIX)


def memory_ports(key_masters: int) -> tuple[str, ...]:
    """Memory ports of a kernel with that many key masters; those behind the first only read."""
    return (MEMORY, *(f"{MEMORY}{i}" for i in range(1, key_masters)))


def card_of(design: DesignConfig) -> Card:
    """Card of a design; ValueError for one whose part no XRT platform carries."""
    if design.name not in CARDS:
        raise ValueError(
            f"design is {design.name!r} on {design.device.part}; allowed for an XRT kernel:"
            f" {', '.join(CARDS)}"
        )
    return CARDS[design.name]


def kernel_values(design: DesignConfig) -> dict[str, object]:
    """Everything the templates name; ValueError as `card_of` and `arguments`."""
    return {
        "design": design,
        "card": card_of(design),
        "module": KERNEL_MODULE,
        "vendor": VENDOR,
        "library": LIBRARY,
        "version": KERNEL_VERSION,
        "control": CONTROL,
        "control_bits": CONTROL_BITS,
        "memories": memory_ports(design.key_masters),
        "memory_bits": 8 * design.bus_bytes,
        "address_bits": ADDRESS_BITS,
        "window_bytes": WINDOW_BYTES,
        "clock": CLOCK,
        "reset": RESET,
        "interrupt": INTERRUPT,
        "protocol": CONTROL_PROTOCOL,
        "lint_waivers": LINT_WAIVERS,
        "arguments": arguments(design),
        "registers": reg.REGISTERS,
        "access": _IP_XACT_ACCESS,
        # Rounded down: the constraint must not be looser than the clock.
        "clock_ns": f"{10**12 // design.clock_hz / 1000:.3f}",
        "clock_mhz": design.clock_hz // 10**6,
    }
