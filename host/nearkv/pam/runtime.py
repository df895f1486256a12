"""PAM step by step: scheduler, mapping inside the devices and time on a machine, coupled.

One stream stands for all: what a layer's KV head selects decides where its tokens lie and how long the tiers
take with `batch` such sequences and the model's heads. The times of the tiers go back to the scheduler, which
reacts. All devices of a tier are alike, and one that holds the whole stream is followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearkv.machine import Machine
from nearkv.pam.mapping import UNPLACED, DeviceMapping, DeviceShape
from nearkv.pam.placement import TIERS
from nearkv.pam.scheduler import Float64, Moves, PamScheduler, TokenIndex
from nearkv.pam.step import PamLoad, PamRun, pam_step
from nearkv.pipeline.work import ModelGeometry
from nearkv_hdl.spec.attention import Merge

# PAM (arXiv 2602.11521), bank organisation: an HBM rank, a DDR chip, an SSD's channels and dies.
PAM_SHAPES = (DeviceShape(4, 4), DeviceShape(2, 4), DeviceShape(8, 4))


@dataclass(frozen=True)
class PamStepRecord:
    """What one step did.

    Attributes:
        attended_tokens: in each tier, before the step's moves.
        moves: between tiers, after it.
        imbalance: of each tier's device.
        run: the step in time, with the moves of the step before beside it.

    """

    attended_tokens: tuple[int, ...]
    moves: Moves
    imbalance: tuple[float, ...]
    run: PamRun


class PamRuntime:
    """Decode steps of one stream.

    Attributes:
        scheduler: decides the tiers.
        mappings: inside a device of each tier.

    """

    def __init__(
        self,
        machine: Machine,
        model: ModelGeometry,
        scheduler: PamScheduler,
        max_tokens: int,
        *,
        batch: int,
        shapes: Sequence[DeviceShape] = PAM_SHAPES,
        merge: Merge = Merge.EXACT,
        reacts: bool = True,
    ) -> None:
        """Start with the scheduler's tokens, if it has any.

        Args:
            machine: with a GPU and three PIM tiers.
            model: shape that times are asked for.
            scheduler: of the stream.
            max_tokens: no token index reaches it.
            batch: sequences that are alike.
            shapes: of one device of each tier.
            merge: of partial results.
            reacts: hand the tiers' times to the scheduler.

        Raises:
            ValueError: other than three shapes.

        """
        if len(shapes) != TIERS:
            raise ValueError(f"shapes are {len(shapes)}; allowed: {TIERS}")
        self.machine, self.model, self.scheduler = machine, model, scheduler
        self.batch, self.merge, self.reacts = batch, merge, reacts
        self.mappings = [DeviceMapping(shape, max_tokens) for shape in shapes]
        self._moved: dict[tuple[int, int], int] = {}
        self._follow()

    def step(self, tokens: int, selected: TokenIndex, weight: Float64) -> PamStepRecord:
        """Attend `selected` where the tokens lie now, then let the scheduler move.

        Args:
            tokens: in the context, those of this step included; new ones are in HBM.
            selected: distinct tokens, ascending, at least one.
            weight: their attention weights.

        Raises:
            ValueError: as `PamScheduler.step` and `pam_step`.

        """
        tier = np.zeros(tokens, np.int8)
        tier[: len(self.scheduler.tier)] = self.scheduler.tier
        attended = np.bincount(tier[selected], minlength=TIERS)
        imbalance = tuple(mapping.imbalance(selected) for mapping in self.mappings)
        load = PamLoad(
            batch=self.batch,
            attended_tokens=[int(count) for count in attended],
            imbalance=imbalance,
            moved_tokens=self._moved,
        )
        run = pam_step(self.machine, self.model, load, self.merge)
        for mapping in self.mappings:
            mapping.observe(selected)
        if self.reacts:
            self.scheduler.react(run.tier_ps)
        moves = self.scheduler.step(tokens, selected, weight)
        self._moved = {pair: len(moved) for pair, moved in moves.tokens.items()}
        self._follow()
        return PamStepRecord(tuple(int(count) for count in attended), moves, imbalance, run)

    def _follow(self) -> None:
        """Bring the mappings to where the scheduler has put the tokens."""
        for which, mapping in enumerate(self.mappings):
            here = self.scheduler.tier == which
            placed = mapping.group[: len(here)] != UNPLACED
            mapping.remove(np.flatnonzero(placed & ~here))
            mapping.place(np.flatnonzero(here & ~placed))
