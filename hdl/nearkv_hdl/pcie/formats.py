"""Packets of the UltraScale+ integrated block for PCI Express (PCIE4), 512 bits wide.

AMD PG213 v1.3: the descriptors of the requester and completer interfaces, and the tables of `tuser` of the
512-bit interfaces. All packets are dword-aligned, payload directly behind the descriptor, and never straddle:
one packet at most has a part in a beat, and it starts in lane 0. Parity and processing hints are not used.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth.lib import data
from amaranth.lib.wiring import In, Out, Signature

BEAT_BYTES = 64
BEAT_DWORDS = 16
REQUEST_DWORDS = 4  # descriptor of a request (RQ, CQ)
COMPLETION_DWORDS = 3  # descriptor of a completion (RC, CC)
TAG_BITS = 8


class RequestType(IntEnum):
    """`request_type` of RQ and CQ."""

    MEMORY_READ = 0b0000
    MEMORY_WRITE = 0b0001


class CompletionStatus(IntEnum):
    """`status` of RC and CC (PCI Express Base Specification 3.1, 2.2.9)."""

    SUCCESSFUL = 0b000
    UNSUPPORTED_REQUEST = 0b001
    CONFIGURATION_RETRY = 0b010
    COMPLETER_ABORT = 0b100


class CompletionError(IntEnum):
    """`error` of RC: what the block found wrong."""

    NONE = 0b0000
    POISONED = 0b0001
    BAD_STATUS = 0b0010
    BAD_LENGTH = 0b0011
    MISMATCH = 0b0100
    BAD_ADDRESS = 0b0101
    BAD_TAG = 0b0110
    FUNCTION_RESET = 0b1000
    TIMEOUT = 0b1001


RQ_DESCRIPTOR = data.StructLayout(
    {
        "address_type": 2,
        "dword_address": 62,
        "dwords": 11,
        "request_type": 4,
        "poisoned": 1,
        "requester_function": 8,
        "requester_bus": 8,
        "tag": TAG_BITS,
        "completer_id": 16,
        "requester_id_enable": 1,  # 0: the block puts its own bus number
        "traffic_class": 3,
        "attributes": 3,
        "force_ecrc": 1,
    }
)

RC_DESCRIPTOR = data.StructLayout(
    {
        "lower_address": 12,
        "error": 4,
        "byte_count": 13,  # bytes of the request from this completion's first one on
        "locked": 1,
        "request_completed": 1,
        "_reserved0": 1,
        "dwords": 11,
        "status": 3,
        "poisoned": 1,
        "_reserved1": 1,
        "requester_id": 16,
        "tag": TAG_BITS,
        "completer_id": 16,
        "_reserved2": 1,
        "traffic_class": 3,
        "attributes": 3,
        "_reserved3": 1,
    }
)

CQ_DESCRIPTOR = data.StructLayout(
    {
        "address_type": 2,
        "dword_address": 62,
        "dwords": 11,
        "request_type": 4,
        "_reserved0": 1,
        "requester_id": 16,
        "tag": TAG_BITS,
        "target_function": 8,
        "bar_id": 3,
        "bar_aperture": 6,  # log2 of the BAR's bytes
        "traffic_class": 3,
        "attributes": 3,
        "_reserved1": 1,
    }
)

CC_DESCRIPTOR = data.StructLayout(
    {
        "lower_address": 7,
        "_reserved0": 1,
        "address_type": 2,
        "_reserved1": 6,
        "byte_count": 13,
        "locked": 1,
        "_reserved2": 2,
        "dwords": 11,
        "status": 3,
        "poisoned": 1,
        "_reserved3": 1,
        "requester_id": 16,
        "tag": TAG_BITS,
        "completer_id": 16,
        "completer_id_enable": 1,  # 0: the block puts its own bus number
        "traffic_class": 3,
        "attributes": 3,
        "force_ecrc": 1,
    }
)

# A field of two entries is for two packets in a beat; without straddling the second one is 0.
RQ_USER = data.StructLayout(
    {
        "first_be": data.ArrayLayout(4, 2),
        "last_be": data.ArrayLayout(4, 2),
        "address_offset": 4,
        "is_sop": 2,
        "sop_lane": data.ArrayLayout(2, 2),  # in units of 4 dwords
        "is_eop": 2,
        "eop_lane": data.ArrayLayout(4, 2),  # last dword
        "discontinue": 1,
        "processing_hint": 24,
        "sequence_number": data.ArrayLayout(6, 2),
        "parity": BEAT_BYTES,
    }
)

RC_USER = data.StructLayout(
    {
        "byte_enables": BEAT_BYTES,
        "is_sop": 4,
        "sop_lane": data.ArrayLayout(2, 4),
        "is_eop": 4,
        "eop_lane": data.ArrayLayout(4, 4),
        "discontinue": 1,
        "parity": BEAT_BYTES,
    }
)

CQ_USER = data.StructLayout(
    {
        "first_be": data.ArrayLayout(4, 2),
        "last_be": data.ArrayLayout(4, 2),
        "byte_enables": BEAT_BYTES,
        "is_sop": 2,
        "sop_lane": data.ArrayLayout(2, 2),
        "is_eop": 2,
        "eop_lane": data.ArrayLayout(4, 2),
        "discontinue": 1,
        "processing_hint": 22,
        "parity": BEAT_BYTES,
    }
)

CC_USER = data.StructLayout(
    {
        "is_sop": 2,
        "sop_lane": data.ArrayLayout(2, 2),
        "is_eop": 2,
        "eop_lane": data.ArrayLayout(4, 2),
        "discontinue": 1,
        "parity": BEAT_BYTES,
    }
)


def packet_stream(user: data.StructLayout) -> Signature:
    """One interface of the block, AXI4-Stream with a `tkeep` bit per dword, seen from the sender.

    `tvalid` must not fall within a packet that is sent to the block (PG213, s_axis_rq_tvalid).
    """
    return Signature(
        {
            "tdata": Out(8 * BEAT_BYTES),
            "tkeep": Out(BEAT_DWORDS),
            "tlast": Out(1),
            "tuser": Out(user.size),
            "tvalid": Out(1),
            "tready": In(1),
        }
    )
