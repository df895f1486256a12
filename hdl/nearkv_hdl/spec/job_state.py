"""What the registers STATUS and ERROR_CODE of the scoring kernel say."""

from __future__ import annotations

from enum import IntEnum


class JobState(IntEnum):
    """Field `state` of STATUS."""

    IDLE = 0  # no job since the reset
    RUNNING = 1
    DONE = 2  # the last job's results are in memory
    FAILED = 3  # the last job stopped, ERROR_CODE says why; its results are not to be used


class ErrorCode(IntEnum):
    """Why a job stopped. The first error is kept until RESET; no job runs before that."""

    NONE = 0
    BLOCK_COUNT = 1  # no block
    HEADS = 2  # none, more than the design's query group, or a descriptor that disagrees
    HEAD_DIM = 3  # not one of the design's, or a descriptor that disagrees
    KEY_FORMAT = 4
    SHIFT = 5  # e above 7
    DESCRIPTOR_ADDRESS = 6  # the list is misaligned or leaves the device's memory
    KEY_ADDRESS = 7  # a block is misaligned or leaves the key window
    QUERY_ADDRESS = 8  # folded codes are misaligned or leave the query window
    RESULT_ADDRESS = 9  # the result window is misaligned, too small, or leaves the memory
    UNWRITTEN = 10  # memory that was never written was to be read
    START_WHILE_BUSY = 11  # ap_start before the job in flight had finished
    QUERY_CODE = 12  # a folded code outside the design's format
    SCORE_OVERFLOW = 13  # a score that does not fit 32 bits
    BUS_ERROR = 14  # the memory answered a read or a write with SLVERR or DECERR; a card model never does
    HEADER_CRC = 15  # a block's header is damaged, or there is none
    HEADER_IDENTITY = 16  # the header is that of another block, layout or generation
    KEY_CRC = 17  # a plane that was streamed does not have the CRC32C that its header names
    TOP_K = 18  # with FLAGS.top_k: K is 0, or K or the job's tokens are above SELECTION; without: K is not 0
    TOKEN_ORDER = 19  # with FLAGS.top_k: a block's tokens are not above those of the block before
