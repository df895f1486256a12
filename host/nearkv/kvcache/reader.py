"""Reading rows from wherever they are, checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearkv.codec.key_block import Float16
from nearkv.kvcache.jobs import FetchJob
from nearkv.kvcache.migration import MigrationEngine
from nearkv.kvcache.moves import MoveState
from nearkv.kvcache.rows import Records, RowIndex, empty_records
from nearkv.kvcache.tier_set import Mask, TierSet
from nearkv.kvcache.tiers import HEADER_BYTES


@dataclass(frozen=True)
class RowsRead:
    """What a read found; the arrays are in the order asked for.

    Attributes:
        keys, values: float16 [n, head_dim]; zeros where a row is missing.
        hot: bool [n], read from a row tier.
        missing: bool [n], to be computed again.

    """

    keys: Float16
    values: Float16
    hot: Mask
    missing: Mask


class RowReader:
    """Collects records from row tiers, and by fetches from block tiers.

    Rows fetched are remembered until `forget`, so that promoting one of them reads nothing.

    Args:
        tiers: the tiers.
        engine: carries fetches.
        batch_rows: most rows of a fetch.
        timeout_ps: of a fetch.

    """

    def __init__(self, tiers: TierSet, engine: MigrationEngine, batch_rows: int, timeout_ps: int) -> None:
        self.tiers, self.engine = tiers, engine
        self._batch_rows, self._timeout_ps = batch_rows, timeout_ps
        self._fetched: list[Records] = []

    def collect(self, rows: RowIndex) -> tuple[Records, Mask, Mask]:
        """Records of rows, which may repeat: records, which were hot, which are missing.

        A copy in a row tier that fails its check counts as bad; if there is a home copy it is dropped and
        the home copy fetched. Runs the clock while it waits.
        """
        copied = self.tiers.table.place_of(rows) >= 0
        records = self.tiers.read_copies(rows)
        hot = copied.copy()
        hot[copied] = self.tiers.good(records[copied], rows[copied])
        if len(bad := np.unique(rows[copied & ~hot])):
            self.tiers.metrics.bad_rows += len(bad)
            self.tiers.drop_copies(bad[self.tiers.has_home(bad)])
        missing = ~hot
        at_home = missing & self.tiers.has_home(rows)
        if at_home.any():
            cold, inverse = np.unique(rows[at_home], return_inverse=True)
            fetched, found = self._fetch(cold)
            records.copy_from(np.flatnonzero(at_home), fetched[inverse])
            missing[at_home] = ~found[inverse]
        return records, hot, missing

    def restore(self, rows: RowIndex, keys: Float16, values: Float16) -> None:
        """Overwrite every copy of rows with what was computed again, float16 [n, head_dim] each.

        Raises ValueError for another shape or dtype, or a row that is named twice.
        """
        codec = self.tiers.codec
        for what, array in (("keys", keys), ("values", values)):
            codec.check(array, what, (len(rows),))
        if len(np.unique(rows)) < len(rows):
            raise ValueError("a row is named twice; allowed: once")
        records = codec.make(rows, self.tiers.table.generation_of(rows), keys, values)
        place = self.tiers.table.place_of(rows)
        for tier, _, here, slots in self.tiers.parts(place):
            tier.write(slots, records[here])
        at_home = self.tiers.has_home(rows)
        for home, here_rows in self.tiers.by_home(rows[at_home]):
            home.write(here_rows, records[np.isin(rows, here_rows)])
            self.tiers.metrics.block_bytes_written += len(here_rows) * (codec.record_bytes + HEADER_BYTES)

    def fetched(self, rows: RowIndex) -> Records:
        """Records remembered of some rows, each once."""
        known = [part[np.isin(part.rows, rows)] for part in self._fetched]
        found = empty_records(sum(map(len, known)), self.tiers.codec.record_bytes)
        start = 0
        for part in known:
            found.copy_from(slice(start, start + len(part)), part)
            start += len(part)
        return found[np.unique(found.rows, return_index=True)[1]]

    def forget(self) -> None:
        """Remember nothing."""
        self._fetched.clear()

    def _fetch(self, rows: RowIndex) -> tuple[Records, Mask]:
        """Fetch home rows, ascending and each once: records and which were found."""
        start_ps = self.engine.clock.now_ps
        moves = [
            self.engine.submit(
                FetchJob(self.tiers, tier, here[start : start + self._batch_rows]), self._timeout_ps
            )
            for tier, here in self.tiers.by_home(rows)
            for start in range(0, len(here), self._batch_rows)
        ]
        self.engine.wait(moves)
        self.tiers.metrics.read_wait_ps += self.engine.clock.now_ps - start_ps
        records = empty_records(len(rows), self.tiers.codec.record_bytes)
        found = np.zeros(len(rows), np.bool_)
        for move in moves:
            job = move.job
            if move.state is MoveState.COMMITTED and isinstance(job, FetchJob) and job.result is not None:
                index = np.searchsorted(rows, job.rows)
                records.copy_from(index, job.result)
                found[index] = True
                self._fetched.append(job.result)
        return records, found
