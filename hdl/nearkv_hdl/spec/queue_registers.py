"""BAR0 of the native PCIe mode: controller registers, doorbells and MSI-X table, a page of 4 KiB each.

Names, offsets and meanings of CAP, VS, CC, CSTS, AQA, ASQ, ACQ and of the doorbells follow the NVM Express
Base Specification 2.0, section 3.1.3, with the pair of queues that it calls the admin queues as the only
one; registers that a scoring kernel has no use for are left out. Table and pending bits of MSI-X follow the
PCI Express Base Specification 5.0, section 7.7.2; they have a page of their own, as it demands. The last page
shows the kernel's registers (`nearkv_hdl.spec.registers`), for reading.
"""

from __future__ import annotations

from enum import IntEnum

from nearkv_hdl.spec.register_map import WINDOW_BYTES, Access, Field, Register, check_table

CONTROLLER_PAGE = 0
DOORBELL_PAGE = 1
MSIX_PAGE = 2
KERNEL_PAGE = 3
BAR_BYTES = 4 * WINDOW_BYTES

QUEUE_VERSION = 0x00010000  # major, minor, tertiary, as VS has them
MAX_QUEUE_ENTRIES = 4096
QUEUE_ALIGN_BYTES = 4096
MSIX_VECTORS = 1
MSIX_TABLE_OFFSET = MSIX_PAGE * WINDOW_BYTES
MSIX_PBA_OFFSET = MSIX_TABLE_OFFSET + 0x800
READY_TIMEOUT_UNIT_PS = 500 * 10**9  # of CAP.to
READY_TIMEOUT_UNITS = 2


class FatalCause(IntEnum):
    """Why CSTS.cfs is set. No entry is fetched until CC.en has been cleared."""

    NONE = 0
    CONFIGURATION = 1
    SQ_DOORBELL = 2
    CQ_DOORBELL = 3
    FETCH = 4
    POST = 5


FATAL_CAUSE_MEANINGS = {
    FatalCause.NONE: "no error",
    FatalCause.CONFIGURATION: "CC.en set with a queue of one entry, or one that does not start on a page",
    FatalCause.SQ_DOORBELL: "a tail beyond the submission queue",
    FatalCause.CQ_DOORBELL: "a head beyond the completion queue, or beyond the completions that were posted",
    FatalCause.FETCH: "the read of a submission entry failed",
    FatalCause.POST: "the write of a completion failed",
}

RW, RO = Access.READ_WRITE, Access.READ_ONLY

CAP = Register(
    "CAP",
    0x00,
    8,
    RO,
    None,
    "capabilities",
    (
        Field("mqes", 0, 16, "entries that a queue may have, minus 1"),
        Field("cqr", 16, 1, "1: queues are contiguous in memory"),
        Field("to", 24, 8, "longest time until CSTS.rdy follows CC.en, in 500 ms"),
        Field("dstrd", 32, 4, "distance of doorbells: 4 · 2^dstrd bytes"),
    ),
)
VS = Register("VS", 0x08, 4, RO, QUEUE_VERSION, "version of this table and of the entries: 1.0.0")
CC = Register(
    "CC",
    0x14,
    4,
    RW,
    0,
    "controller configuration",
    (Field("en", 0, 1, "1: take the queues' registers and serve them; 0: drop the job, forget the queues"),),
)
CSTS = Register(
    "CSTS",
    0x1C,
    4,
    RO,
    0,
    "controller status",
    (
        Field("rdy", 0, 1, "follows CC.en; 0 only when nothing of the device is left on the bus"),
        Field("cfs", 1, 1, "controller fatal status, FATAL_CAUSE says why"),
    ),
)
AQA = Register(
    "AQA",
    0x24,
    4,
    RW,
    0,
    "sizes of the queues, not to be changed while CC.en is set",
    (
        Field("asqs", 0, 12, "entries of the submission queue, minus 1; from 1"),
        Field("acqs", 16, 12, "entries of the completion queue, minus 1; from 1"),
    ),
)
ASQ = Register("ASQ", 0x28, 8, RW, 0, "address of the submission queue, 4096-byte aligned; as AQA")
ACQ = Register("ACQ", 0x30, 8, RW, 0, "address of the completion queue, 4096-byte aligned; as AQA")
FATAL_CAUSE = Register(
    "FATAL_CAUSE", 0x100, 4, RO, 0, "FatalCause of CSTS.cfs", (Field("cause", 0, 8, "FatalCause"),)
)
SQ_HEAD = Register(
    "SQ_HEAD", 0x104, 4, RO, 0, "the submission entry fetched next", (Field("index", 0, 12, "from 0"),)
)
CQ_TAIL = Register(
    "CQ_TAIL",
    0x108,
    4,
    RO,
    1 << 16,
    "where the next completion goes",
    (Field("index", 0, 12, "from 0"), Field("phase", 16, 1, "its phase bit, 1 in the first round")),
)
DROPPED_REQUESTS = Register(
    "DROPPED_REQUESTS", 0x10C, 4, RO, 0, "posted or damaged requests on BAR0 that were dropped since reset"
)
REFUSED_REQUESTS = Register(
    "REFUSED_REQUESTS", 0x110, 4, RO, 0, "requests answered with an error status since reset"
)
COMPLETION_TIMEOUTS = Register(
    "COMPLETION_TIMEOUTS", 0x114, 4, RO, 0, "reads of host memory that were not answered in time, since reset"
)
UNEXPECTED_COMPLETIONS = Register(
    "UNEXPECTED_COMPLETIONS", 0x118, 4, RO, 0, "completions that no read was waiting for, since reset"
)
LATE_COMPLETIONS = Register(
    "LATE_COMPLETIONS", 0x11C, 4, RO, 0, "completions of reads that had been given up, since reset"
)

SQ_TAIL_DOORBELL = Register(
    "SQ_TAIL_DOORBELL",
    0x00,
    4,
    RW,
    0,
    "one past the last submission entry; 0 while CC.en is 0",
    (Field("index", 0, 16, "below the queue's size"),),
)
CQ_HEAD_DOORBELL = Register(
    "CQ_HEAD_DOORBELL",
    0x04,
    4,
    RW,
    0,
    "the first completion not yet read; 0 while CC.en is 0",
    (Field("index", 0, 16, "below the queue's size"),),
)

MSIX_ADDRESS = Register(
    "MSIX_ADDRESS", 0x00, 8, RW, 0, "vector 0: where the message is written, a multiple of 4"
)
MSIX_DATA = Register("MSIX_DATA", 0x08, 4, RW, 0, "vector 0: what is written")
MSIX_CONTROL = Register(
    "MSIX_CONTROL", 0x0C, 4, RW, 1, "vector 0: control", (Field("mask", 0, 1, "1: keep the message pending"),)
)
MSIX_PENDING = Register(
    "MSIX_PENDING", 0x800, 4, RO, 0, "pending bits", (Field("vector0", 0, 1, "a message waits for its mask"),)
)

CONTROLLER = (
    *(CAP, VS, CC, CSTS, AQA, ASQ, ACQ),
    *(FATAL_CAUSE, SQ_HEAD, CQ_TAIL, DROPPED_REQUESTS, REFUSED_REQUESTS),
    *(COMPLETION_TIMEOUTS, UNEXPECTED_COMPLETIONS, LATE_COMPLETIONS),
)
DOORBELLS = (SQ_TAIL_DOORBELL, CQ_HEAD_DOORBELL)
MSIX = (MSIX_ADDRESS, MSIX_DATA, MSIX_CONTROL, MSIX_PENDING)
PAGES = {CONTROLLER_PAGE: CONTROLLER, DOORBELL_PAGE: DOORBELLS, MSIX_PAGE: MSIX}
CONSTANTS = {
    CAP: CAP.pack(mqes=MAX_QUEUE_ENTRIES - 1, cqr=1, to=READY_TIMEOUT_UNITS, dstrd=0),
    VS: QUEUE_VERSION,
}


def bar_offset(register: Register) -> int:
    """Offset of one of these registers in BAR0; ValueError for another."""
    for page, table in PAGES.items():
        if register in table:
            return page * WINDOW_BYTES + register.offset
    raise ValueError(f"register is {register.name}; allowed: one of the controller, doorbells or MSI-X")


for _table in PAGES.values():
    check_table(_table)
