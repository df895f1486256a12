"""What the registers STATUS and ERROR_CODE of the scoring kernel say."""

from __future__ import annotations

from enum import IntEnum


class JobState(IntEnum):
    """Field `state` of STATUS."""

    IDLE = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3


JOB_STATE_MEANINGS = {
    JobState.IDLE: "no job since the reset",
    JobState.RUNNING: "from ap_start until the job has finished or failed",
    JobState.DONE: "the last job's results are in memory",
    JobState.FAILED: "the last job stopped, ERROR_CODE says why; its results are not to be used",
}


class ErrorCode(IntEnum):
    """Why a job stopped. The first error is kept until RESET; no job runs before that."""

    NONE = 0
    BLOCK_COUNT = 1
    HEADS = 2
    HEAD_DIM = 3
    KEY_FORMAT = 4
    SHIFT = 5
    DESCRIPTOR_ADDRESS = 6
    KEY_ADDRESS = 7
    QUERY_ADDRESS = 8
    RESULT_ADDRESS = 9
    UNWRITTEN = 10
    START_WHILE_BUSY = 11
    QUERY_CODE = 12
    SCORE_OVERFLOW = 13
    BUS_ERROR = 14
    HEADER_CRC = 15
    HEADER_IDENTITY = 16
    KEY_CRC = 17
    TOP_K = 18
    TOKEN_ORDER = 19


ERROR_MEANINGS = {
    ErrorCode.NONE: "no error",
    ErrorCode.BLOCK_COUNT: "no block",
    ErrorCode.HEADS: "0, more than the design's query group, or a descriptor that disagrees",
    ErrorCode.HEAD_DIM: "not one of the design's, or a descriptor that disagrees",
    ErrorCode.KEY_FORMAT: "a descriptor's is neither 0, INT8, nor 1, INT4",
    ErrorCode.SHIFT: "a head's shift in a descriptor is above 7",
    ErrorCode.DESCRIPTOR_ADDRESS: "the list is misaligned or leaves the device's memory",
    ErrorCode.KEY_ADDRESS: "a block is misaligned or leaves the key window",
    ErrorCode.QUERY_ADDRESS: "folded codes are misaligned or leave the query window",
    ErrorCode.RESULT_ADDRESS: "the result window is misaligned, too small, or leaves the memory",
    ErrorCode.UNWRITTEN: "memory that was never written was to be read",
    ErrorCode.START_WHILE_BUSY: "ap_start before the job in flight had finished",
    ErrorCode.QUERY_CODE: "a folded code outside the design's format",
    ErrorCode.SCORE_OVERFLOW: "a score that does not fit 32 bits",
    ErrorCode.BUS_ERROR: "the memory answered a read or a write with SLVERR or DECERR",
    ErrorCode.HEADER_CRC: "a block's header is damaged, or there is none",
    ErrorCode.HEADER_IDENTITY: "the header is that of another block, layout or generation",
    ErrorCode.KEY_CRC: "a plane that was streamed does not have the CRC32C that its header names",
    ErrorCode.TOP_K: "with FLAGS.top_k: K is 0, K or the tokens are above SELECTION; without: K is not 0",
    ErrorCode.TOKEN_ORDER: "with FLAGS.top_k: a block's tokens are not above those of the block before",
}
