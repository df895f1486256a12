"""Where the parts of a scoring job lie in device memory, and the arguments that say so to the kernel."""

from __future__ import annotations

import numpy as np

from nearkv.codec.block_header import stream_crc
from nearkv.device.descriptors import StoredBlocks, query_code_dtype
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, SCORE_BYTES, selection_bytes
from nearkv_hdl.spec.register_map import Register


class JobPlaces:
    """The parts of a job: results, then descriptors, then codes.

    Args:
        design: the kernel's build.
        blocks, heads, head_dim: of the job.
        k: scores wanted of each head; 0 for all.

    Attributes:
        result_bytes, code_bytes: sizes of two parts.
        nbytes: size of all.

    """

    def __init__(self, design: DesignConfig, blocks: int, heads: int, head_dim: int, k: int) -> None:
        self._design = design
        self._blocks, self._heads, self._head_dim, self._k = blocks, heads, head_dim, k
        tokens = blocks * design.block_tokens
        if k:
            self.result_bytes = heads * selection_bytes(min(k, tokens))
        else:
            self.result_bytes = tokens * heads * SCORE_BYTES
        self.code_bytes = blocks * heads * head_dim * query_code_dtype(design.query_bits).itemsize
        # Descriptors are aligned to their size, which results of small blocks may not fill.
        self._room_bytes = -(-self.result_bytes // DESCRIPTOR_BYTES) * DESCRIPTOR_BYTES
        self.nbytes = self._room_bytes + blocks * DESCRIPTOR_BYTES + self.code_bytes

    def arguments(self, address: int, stored: StoredBlocks) -> dict[Register, int]:
        """All arguments of the job, for parts that begin at `address`."""
        descriptor_address = address + self._room_bytes
        keys = stored.key_addresses
        block_bytes = self._design.layout(self._head_dim).block_bytes
        return {
            reg.DESCRIPTOR_ADDRESS: descriptor_address,
            reg.KEY_ADDRESS: int(keys.min()),
            reg.KEY_BYTES: int(np.ptp(keys)) + block_bytes + HEADER_BYTES,
            reg.QUERY_ADDRESS: descriptor_address + self._blocks * DESCRIPTOR_BYTES,
            reg.QUERY_BYTES: self.code_bytes,
            reg.RESULT_ADDRESS: address,
            reg.RESULT_BYTES: self.result_bytes,
            reg.BLOCK_COUNT: self._blocks,
            reg.HEAD_DIM: self._head_dim,
            reg.HEADS: self._heads,
            reg.STREAM_CRC32C: stream_crc(stored.identity),
            reg.K: self._k,
            reg.FLAGS: reg.FLAGS.pack(top_k=int(self._k > 0)),
        }
