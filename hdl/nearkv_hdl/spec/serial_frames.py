"""The byte protocol of a scorer behind a serial line: frames, requests, answers.

A frame is START, kind, sequence, payload length (16 bits), payload, CRC32C of everything between START and
itself; numbers are little-endian. Every request has one answer with the same sequence, and the next request
comes after it. A frame that is damaged or incomplete is dropped without an answer; the host repeats it, and a
repeated sequence is answered again but not carried out again. RESET is always carried out.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS, SCORE, SHIFT, TOKEN_INDEX
from nearkv_hdl.spec.layout import KeyFormat

START = 0xA5
HEADER_BYTES = 4  # kind, sequence, length
CRC_BYTES = 4
FRAME_OVERHEAD_BYTES = 1 + HEADER_BYTES + CRC_BYTES
MAX_PAYLOAD_BYTES = 1024
ANSWER = 0x80  # added to the request's kind
STATUS_BYTES = 1  # first byte of every answer's payload
TOKEN_BYTES = TOKEN_INDEX.width // 8
SCORE_BYTES = SCORE.width // 8
HEAD_DIM_INDEX_BITS = 2


class Request(IntEnum):
    """What the host asks for; in brackets the payload, and the answer's after its status byte."""

    RESET = 0  # scorer to its state after power-on, queued scores dropped [nothing; nothing]
    HELLO = 1  # who are you? [nothing; identity registers, frames dropped since power-on, 32 bits each]
    BLOCK = 2  # a block's command [as `block_command`; scores]
    QUERY = 3  # beats of folded codes, some of a block's [whole beats; scores]
    QUERY_END = 4  # the same, with the block's last beat at their end
    KEYS = 5  # beats of key planes, some of a block's [whole beats; scores]
    KEYS_END = 6  # the same, with the block's last beat at their end
    POLL = 7  # [nothing; scores]


class Status(IntFlag):
    """First byte of an answer; 0 is good."""

    STALLED = 1  # the scorer took no beat for too long; part of the payload may be lost: RESET
    OVERFLOW = 2  # a score did not fit since RESET
    FRAMING = 4  # a block's end came in the wrong place since RESET
    REFUSED = 8  # unknown kind, or a length it cannot have: nothing was done


def check_design(design: DesignConfig) -> None:
    """Raise ValueError unless the protocol can carry the design's queries: one byte per code."""
    if design.query_bits != 8:
        raise ValueError(f"query_bits is {design.query_bits}; a serial scorer allows: 8")


def command_bits(design: DesignConfig) -> int:
    """Bits of a block's command."""
    return TOKEN_INDEX.width + HEAD_DIM_INDEX_BITS + 2 + design.query_group * (SHIFT.width + BIAS.width)


def command_bytes(design: DesignConfig) -> int:
    """Payload of BLOCK."""
    return -(-command_bits(design) // 8)


def block_command(
    design: DesignConfig,
    first_token: int,
    head_dim: int,
    key_format: KeyFormat,
    shift: tuple[int, ...],
    bias: tuple[int, ...],
) -> bytes:
    """Pack a block's command, lowest bits first, in the order of `attention.query_buffer.command_layout`.

    `shift` and `bias` have one entry per head of the query group. Raises ValueError for another number of
    them, for tokens whose index does not fit, and for a head_dim of another design.
    """
    design.check_head_dim(head_dim)
    if not len(shift) == len(bias) == design.query_group:
        raise ValueError(f"{len(shift)} shifts and {len(bias)} biases; allowed: {design.query_group} of each")
    last_first_token = (1 << TOKEN_INDEX.width) - design.block_tokens
    if not 0 <= first_token <= last_first_token:
        raise ValueError(f"first_token is {first_token}; allowed: 0 to {last_first_token}")
    last = 0  # of a job: what a score's `last` repeats; tokens are counted here instead
    fields = [
        (first_token, TOKEN_INDEX.width),
        (design.head_dims.index(head_dim), HEAD_DIM_INDEX_BITS),
        (int(key_format), 1),
        *((value, SHIFT.width) for value in shift),
        *((value, BIAS.width) for value in bias),
        (last, 1),
    ]
    word = at = 0
    for value, width in fields:
        word |= (value & (1 << width) - 1) << at
        at += width
    return word.to_bytes(command_bytes(design), "little")


def record_bytes(design: DesignConfig) -> int:
    """One score record of an answer: token index, then a score per head of the query group."""
    return TOKEN_BYTES + SCORE_BYTES * design.query_group


def records_per_answer(design: DesignConfig) -> int:
    """Records that fit an answer."""
    return (MAX_PAYLOAD_BYTES - STATUS_BYTES) // record_bytes(design)
