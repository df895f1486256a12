"""CRC32C of the key planes of a job, each block's worked out once for as long as it stays as it is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.crc import crc32c_combine, crc32c_rows
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.engines import ScoringJob

_CACHED_BLOCKS = 1 << 16


class PlaneCrcs:
    """Remembers the CRCs of blocks by address, generation and length."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def of_blocks(self, job: ScoringJob) -> list[tuple[int, ...]]:
        """Per block the CRC32C of each plane that is streamed: high and low, or high alone."""
        keys = [(*source, len(planes)) for source, planes in zip(job.sources, job.planes, strict=True)]
        if len(self._known) + len(keys) > _CACHED_BLOCKS:
            self._known.clear()
        count_of = {KeyFormat.INT8: 2, KeyFormat.INT4: 1}
        unknown = {
            key: planes.reshape(count_of[key_format], -1)
            for key, planes, key_format in zip(keys, job.planes, job.key_formats, strict=True)
            if key not in self._known
        }
        if unknown:
            crcs = iter(crc32c_rows(np.concatenate(list(unknown.values()))).tolist())
            for key, planes in unknown.items():
                self._known[key] = tuple(next(crcs) for _ in planes)
        return [self._known[key] for key in keys]


def differing_planes(
    crcs: list[tuple[int, ...]], expected: NDArray[np.uint32]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which blocks have a plane whose CRC is not the expected one, and the first such plane of each.

    Args:
        crcs: per block, of the planes that were streamed.
        expected: uint32 [blocks, 2].

    """
    planes = np.array(
        [(*of_block, wanted[1])[:2] for of_block, wanted in zip(crcs, expected.tolist(), strict=True)]
    )
    differs = planes != expected
    return differs.any(axis=1), differs.argmax(axis=1)


def joined(crcs: list[tuple[int, ...]], plane_bytes: int) -> int:
    """CRC32C of all these planes in list order."""
    crc = 0
    for of_block in crcs:
        for of_plane in of_block:
            crc = crc32c_combine(crc, of_plane, plane_bytes)
    return crc
