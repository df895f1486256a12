"""The register table of the scoring kernel, version 3: the one source of offsets for RTL, driver and models.

Offsets are bytes from the start of the control window; a register is one or two little-endian 32-bit words,
the lower word first. 0x00–0x0C is XRT's ap_ctrl_chain block. Arguments follow from 0x10, each with a reserved
word behind it, as XRT's kernel.xml lays them out; status, identity and counters have blocks of their own, so
that a new argument moves none of them.

Registers of two words are read and written a word at a time, without tearing: a read of a read-only
register's lower word keeps its upper word, which is what the next reads of the upper word return, until a
lower word of another such register is read. Arguments are taken together when ap_start is written.

Version 2 adds to version 1 what a host checks a job by: EVENTS, WRITTEN_BYTES and the two CRCs. Version 3
adds whose blocks a job scores (STREAM_CRC32C), the choice between all scores and the highest of each head
(K, FLAGS, SELECTION), of how many tokens an error speaks (ERROR_TOKENS), and what a job waited for (stalls).
"""

from __future__ import annotations

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.job_state import (
    ErrorCode as ErrorCode,  # values of registers, so that they are found here
)
from nearkv_hdl.spec.job_state import JobState as JobState
from nearkv_hdl.spec.layout import HEAD_DIMS, LAYOUT_VERSION
from nearkv_hdl.spec.register_map import Access, Field, Register, check_table

STATUS_OFFSET = 0x100
IDENTITY_OFFSET = 0x180
COUNTER_OFFSET = 0x200
KERNEL_IDENTITY = 0x4E4B5651  # "NKVQ"
REGISTER_VERSION = 3


RW, RO, WO = Access.READ_WRITE, Access.READ_ONLY, Access.WRITE_ONLY

CTRL = Register(
    "CTRL",
    0x00,
    4,
    Access.COMMAND,
    0x4,
    "ap_ctrl_chain handshake",
    (
        Field("ap_start", 0, 1, "write 1: run the job that the arguments describe; reads 1 while it runs"),
        Field("ap_done", 1, 1, "the job has finished or failed; cleared by ap_continue"),
        Field("ap_idle", 2, 1, "no job is in flight"),
        Field("ap_ready", 3, 1, "the arguments may be overwritten; equal to ap_done"),
        Field("ap_continue", 4, 1, "write 1: the host has seen ap_done"),
    ),
)
GIER = Register(
    "GIER", 0x04, 4, RW, 0, "global interrupt enable", (Field("enable", 0, 1, "interrupts may be raised"),)
)
IER = Register("IER", 0x08, 4, RW, 0, "interrupt enable", (Field("done", 0, 1, "raise one at ap_done"),))
ISR = Register(
    "ISR",
    0x0C,
    4,
    Access.TOGGLE_ON_WRITE,
    0,
    "interrupt status; a new interrupt is raised only when a bit rises",
    (Field("done", 0, 1, "ap_done has risen since this bit was cleared"),),
)
# Arguments: 64-bit ones take 12 bytes, 32-bit ones 8.
DESCRIPTOR_ADDRESS = Register("DESCRIPTOR_ADDRESS", 0x10, 8, RW, 0, "first block descriptor, 64-byte aligned")
KEY_ADDRESS = Register("KEY_ADDRESS", 0x1C, 8, RW, 0, "start of the window that key blocks may be read from")
KEY_BYTES = Register("KEY_BYTES", 0x28, 8, RW, 0, "size of the key window")
QUERY_ADDRESS = Register("QUERY_ADDRESS", 0x34, 8, RW, 0, "start of the window of folded query codes")
QUERY_BYTES = Register("QUERY_BYTES", 0x40, 8, RW, 0, "size of the query window")
RESULT_ADDRESS = Register(
    "RESULT_ADDRESS",
    0x4C,
    8,
    RW,
    0,
    "where scores go, 64-byte aligned: signed 32 bit, [tokens of all blocks in list order, HEADS]; with"
    " FLAGS.top_k pairs of token and score, [HEADS, the lesser of K and the job's tokens], tokens ascending,"
    " each head's filled up with zeros to 64 bytes",
)
RESULT_BYTES = Register("RESULT_BYTES", 0x58, 8, RW, 0, "size of the result window")
BLOCK_COUNT = Register("BLOCK_COUNT", 0x64, 4, RW, 0, "descriptors in the list")
HEAD_DIM = Register("HEAD_DIM", 0x6C, 4, RW, 0, "channels of every key of the job")
HEADS = Register(
    "HEADS", 0x74, 4, RW, 0, "query heads of the job; lanes of the query group beyond it see zero codes"
)

STREAM_CRC32C = Register(
    "STREAM_CRC32C", 0x7C, 4, RW, 0, "CRC32C of the 12 bytes of identity that every block header must have"
)
K = Register("K", 0x84, 4, RW, 0, "scores wanted of each head with FLAGS.top_k, otherwise 0")
FLAGS = Register(
    "FLAGS",
    0x8C,
    4,
    RW,
    0,
    "what is written",
    (Field("top_k", 0, 1, "the K highest scores of each head, ties to the lower token; else all scores"),),
)

STATUS = Register(
    "STATUS", STATUS_OFFSET, 4, RO, 0, "state of the current or last job", (Field("state", 0, 4, "JobState"),)
)
ERROR_CODE = Register(
    "ERROR_CODE", STATUS_OFFSET + 0x04, 4, RO, 0, "first ErrorCode since the reset; no job runs until then"
)
ERROR_ADDRESS = Register("ERROR_ADDRESS", STATUS_OFFSET + 0x08, 8, RO, 0, "address the error is about, or 0")
ERROR_TOKEN = Register("ERROR_TOKEN", STATUS_OFFSET + 0x10, 4, RO, 0, "first token of the block it is about")
RESET = Register(
    "RESET",
    STATUS_OFFSET + 0x14,
    4,
    WO,
    0,
    "recovery of a job that does not finish",
    (Field("reset", 0, 1, "write 1: drop the job and return every register to its reset value"),),
)
EVENTS = Register(
    "EVENTS",
    STATUS_OFFSET + 0x18,
    4,
    Access.CLEAR_ON_READ,
    0,
    "what has happened since this register was read, for hosts that poll",
    (Field("done", 0, 1, "a job has finished"), Field("failed", 1, 1, "a job has failed")),
)
ERROR_TOKENS = Register(
    "ERROR_TOKENS",
    STATUS_OFFSET + 0x1C,
    4,
    RO,
    0,
    "how many tokens from ERROR_TOKEN on it is about: those of a block, or 0",
)

IDENTITY = Register("IDENTITY", IDENTITY_OFFSET, 4, RO, KERNEL_IDENTITY, "tells the kernel from any other")
VERSION = Register(
    "VERSION",
    IDENTITY_OFFSET + 0x04,
    4,
    RO,
    None,
    "versions of this table and of the memory layouts",
    (Field("registers", 0, 16, "REGISTER_VERSION"), Field("layout", 16, 16, "LAYOUT_VERSION")),
)
SCORER = Register(
    "SCORER",
    IDENTITY_OFFSET + 0x08,
    4,
    RO,
    None,
    "capabilities: arithmetic",
    (
        Field("query_group", 0, 8, "query heads scored at once"),
        Field("query_bits", 8, 8, "width of a folded query code"),
        Field(
            "head_dims",
            16,
            8,
            f"bit i: supports the i-th head_dim of {', '.join(map(str, HEAD_DIMS))}, counted from 0",
        ),
    ),
)
STREAM = Register(
    "STREAM",
    IDENTITY_OFFSET + 0x0C,
    4,
    RO,
    None,
    "capabilities: streaming",
    (Field("lanes", 0, 16, "8-bit multipliers per head"), Field("bus_bytes", 16, 16, "key stream width")),
)
BLOCK = Register(
    "BLOCK",
    IDENTITY_OFFSET + 0x10,
    4,
    RO,
    None,
    "capabilities: blocks",
    (Field("block_tokens", 0, 16, "tokens of a key block"),),
)
SELECTION = Register(
    "SELECTION",
    IDENTITY_OFFSET + 0x14,
    4,
    RO,
    None,
    "capabilities: most tokens of a job with FLAGS.top_k, or 0",
)

# Of the current or last job; 0 when a job starts.
CYCLES = Register("CYCLES", COUNTER_OFFSET, 8, RO, 0, "clock cycles from start to the last write's answer")
TOKENS = Register("TOKENS", COUNTER_OFFSET + 0x08, 8, RO, 0, "tokens scored")
STREAMED_BYTES = Register("STREAMED_BYTES", COUNTER_OFFSET + 0x10, 8, RO, 0, "bytes of key planes read")
WRITTEN_BYTES = Register("WRITTEN_BYTES", COUNTER_OFFSET + 0x18, 8, RO, 0, "bytes of results written")
STREAMED_CRC32C = Register(
    "STREAMED_CRC32C", COUNTER_OFFSET + 0x20, 4, RO, 0, "CRC32C of the key planes read, in list order"
)
WRITTEN_CRC32C = Register(
    "WRITTEN_CRC32C", COUNTER_OFFSET + 0x24, 4, RO, 0, "CRC32C of the results written, by rising address"
)
INPUT_STALLS = Register(
    "INPUT_STALLS", COUNTER_OFFSET + 0x28, 8, RO, 0, "cycles in which the scorer waited for keys"
)
OUTPUT_STALLS = Register(
    "OUTPUT_STALLS", COUNTER_OFFSET + 0x30, 8, RO, 0, "cycles in which scores waited to be taken"
)

COUNTERS = (
    *(CYCLES, TOKENS, STREAMED_BYTES, WRITTEN_BYTES, STREAMED_CRC32C, WRITTEN_CRC32C),
    *(INPUT_STALLS, OUTPUT_STALLS),
)
ARGUMENTS = (
    DESCRIPTOR_ADDRESS,
    KEY_ADDRESS,
    KEY_BYTES,
    QUERY_ADDRESS,
    QUERY_BYTES,
    RESULT_ADDRESS,
    RESULT_BYTES,
    BLOCK_COUNT,
    HEAD_DIM,
    HEADS,
    STREAM_CRC32C,
    K,
    FLAGS,
)
REGISTERS = (
    *(CTRL, GIER, IER, ISR),
    *ARGUMENTS,
    *(STATUS, ERROR_CODE, ERROR_ADDRESS, ERROR_TOKEN, RESET, EVENTS, ERROR_TOKENS),
    *(IDENTITY, VERSION, SCORER, STREAM, BLOCK, SELECTION),
    *COUNTERS,
)


def identity_values(design: DesignConfig) -> dict[Register, int]:
    """What a kernel built from `design` reads in the registers that describe it."""
    head_dims = sum(1 << HEAD_DIMS.index(head_dim) for head_dim in design.head_dims)
    return {
        IDENTITY: KERNEL_IDENTITY,
        VERSION: VERSION.pack(registers=REGISTER_VERSION, layout=LAYOUT_VERSION),
        SCORER: SCORER.pack(
            query_group=design.query_group, query_bits=design.query_bits, head_dims=head_dims
        ),
        STREAM: STREAM.pack(lanes=design.lanes, bus_bytes=design.bus_bytes),
        BLOCK: BLOCK.pack(block_tokens=design.block_tokens),
        SELECTION: design.topk_capacity,
    }


check_table(REGISTERS)
