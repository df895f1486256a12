"""CRC32C of the key planes of a job, each block's worked out once for as long as it stays as it is."""

from __future__ import annotations

import numpy as np

from nearkv.codec.crc import crc32c_combine, crc32c_rows
from nearkv_sim.engines import ScoringJob

_CACHED_BLOCKS = 1 << 16


class PlaneCrcs:
    """Remembers the CRCs of blocks by address, generation and length."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], int] = {}

    def of_job(self, job: ScoringJob) -> int:
        """CRC32C of all planes that the job streams, in list order."""
        keys = [(*source, len(planes)) for source, planes in zip(job.sources, job.planes, strict=True)]
        planes_of = dict(zip(keys, job.planes, strict=True))
        if len(self._known) + len(planes_of) > _CACHED_BLOCKS:
            self._known.clear()
        unknown = [key for key in planes_of if key not in self._known]
        for nbytes in {key[2] for key in unknown}:
            same = [key for key in unknown if key[2] == nbytes]
            crcs = crc32c_rows(np.stack([planes_of[key] for key in same])).tolist()
            self._known.update(zip(same, crcs, strict=True))
        crc = 0
        for key in keys:
            crc = crc32c_combine(crc, self._known[key], key[2])
        return crc
