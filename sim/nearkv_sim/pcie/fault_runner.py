"""Runs trials of the fault matrix: the fault, how the job ends, and whether everything is as before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.block_header import with_headers
from nearkv.codec.key_block import pack_blocks, quantise_keys
from nearkv.codec.query import FoldedQuery, fold_query, prepare_query
from nearkv.device.descriptors import StoredBlocks
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.pcie.fault_trial import JOB_TIMEOUT_PS, BadCall, Ending, Stage, Trial
from nearkv_sim.pcie.faults import Fault, FaultKind
from nearkv_sim.pcie.hostile import HostileTransport
from nearkv_sim.pcie.simulator import Simulator

MEMORY_BYTES = 1 << 20
BLOCKS, HEADS, HEAD_DIM = 2, 2, 64
IDENTITY = StreamIdentity(model=1, sequence=2, layer=3, kv_head=4)


@dataclass(frozen=True)
class Found:
    """How a trial went.

    Attributes:
        ending: of the job; None if it took more than one retry, or gave wrong scores.
        cause: the error's kind and message, what is wrong without an ending, or nothing.
        elapsed_ps: simulated time from the job's first transfer to its end.
        left_over: what was not as before afterwards, in words; empty if all is well.

    """

    ending: Ending | None
    cause: str
    elapsed_ps: int
    left_over: tuple[str, ...]

    def differences(self, trial: Trial) -> list[str]:
        """In what it differs from what the trial must give."""
        found = []
        if self.ending is not trial.ending or trial.cause not in self.cause:
            ending = self.ending.value if self.ending else "neither success, one retry nor an error"
            found.append(f"ends with {ending} {self.cause}; expected: {trial.expected}")
        if self.elapsed_ps > trial.deadline_ps:
            found.append(f"takes {self.elapsed_ps} ps; deadline {trial.deadline_ps} ps")
        return [*found, *self.left_over]


class Work:
    """Key blocks and two queries over them, with golden scores; seeded.

    Args:
        simulator: whose design is used.
        seed: of keys and queries.

    """

    def __init__(self, simulator: Simulator, seed: int) -> None:
        design = simulator.design
        rng = np.random.default_rng(seed)
        keys = rng.standard_normal((BLOCKS * design.block_tokens, HEAD_DIM)).astype(np.float16)
        self.blocks = quantise_keys(keys, design.block_tokens)
        self.first_tokens, self.generations = design.block_tokens * np.arange(BLOCKS), np.arange(BLOCKS) + 1
        planes = pack_blocks(self.blocks)
        self.image = with_headers(planes, self.blocks.layout, IDENTITY, self.first_tokens, self.generations)
        self._folded = [
            fold_query(
                prepare_query(rng.standard_normal((HEADS, HEAD_DIM)).astype(np.float16)),
                self.blocks.headers,
                KeyFormat.INT8,
                design.query_code,
            )
            for _ in range(2)
        ]
        self._model = ScorerModel(design)

    def job(self, query: int, blocks: int) -> tuple[FoldedQuery, NDArray[np.int32]]:
        """A query over the first blocks, and the scores it must give."""
        folded = self._folded[query][:blocks]
        codes = self.blocks.codes[:blocks]
        return folded, self._model.score(codes, folded.codes, folded.shift, folded.bias)


class _Scene:
    """A card just powered on, a drive with key blocks, and the driver."""

    def __init__(self, simulator: Simulator, work: Work) -> None:
        self.work = work
        self.transport = HostileTransport(
            simulator.design, simulator.config, MEMORY_BYTES, simulator=simulator
        )
        self.driver = ScorerDriver(self.transport, JOB_TIMEOUT_PS)
        room_bytes = -(-work.image.shape[1] // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        self._image = np.zeros((BLOCKS, room_bytes), np.uint8)
        self._image[:, : work.image.shape[1]] = work.image
        self._room_bytes = room_bytes
        self.transport.fill_drive(0, self._image.reshape(-1))

    @property
    def retries(self) -> int:
        return self.driver.job_retries + self.driver.access.retries

    def run(self, query: int, blocks: int) -> bool:
        """Load keys from the drive to where none were, score them; whether the scores are right."""
        folded, expected = self.work.job(query, blocks)
        nbytes = blocks * self._room_bytes
        address = self.driver.allocate(nbytes, "keys")
        to_card = self.transport.drive_to_card
        self.driver.access.transfer("transfer from the drive", to_card, 0, address, nbytes)
        stored = StoredBlocks(
            IDENTITY,
            address + self._room_bytes * np.arange(blocks),
            self.work.first_tokens[:blocks],
            self.work.generations[:blocks],
        )
        return np.array_equal(self.driver.score(stored, folded), expected)

    def differences(self, counts: dict[str, int]) -> list[str]:
        """Run a good job; say what of it, of the registers and of the links is not as it should be."""
        found = []
        retries = self.retries
        try:
            if not self.run(0, 1):
                found.append("the next job's scores are wrong")
        except (OSError, ValueError) as error:
            found.append(f"the next job fails: {error}")
        if self.retries != retries:
            found.append("the next job is retried")
        rest = {
            reg.STATUS: reg.STATUS.pack(state=reg.JobState.DONE),
            reg.ERROR_CODE: reg.ErrorCode.NONE,
            reg.CTRL: reg.CTRL.mask("ap_idle"),
            reg.ISR: 0,
        }
        for register, value in rest.items():
            if (is_now := self.driver.access.read(register)) != value:
                found.append(f"{register.name} is {is_now:#x} instead of {value:#x}")
        after = self.transport.link_report().counts
        found += [f"{name}: {after[name]} instead of {n}" for name, n in counts.items() if after[name] != n]
        return found


def run_trial(simulator: Simulator, work: Work, trial: Trial) -> Found:
    """Run one trial from power-on, with a job before and one behind it.

    Raises ValueError for a trial of the native mode, which has a bench of its own.
    """
    scene = _Scene(simulator, work)
    try:
        counts = scene.transport.link_report().counts
        left_over = [] if scene.run(0, 1) else ["the scores of the job before are wrong"]
        provocation = trial.provocation
        scene.transport.provoke(provocation)
        start_ps, retries = scene.transport.now_ps, scene.retries
        ending, cause = None, ""
        try:
            if isinstance(provocation, BadCall):
                getattr(scene.transport, provocation.method)(*provocation.arguments)
            # Of two blocks, where writes of arguments may be lost: every one differs from the job's before.
            right = scene.run(1, 1 + (trial.stage is Stage.REGISTER))
            extra = scene.retries - retries
            if not right:
                cause = "wrong scores"
            elif extra > 1:
                cause = f"{extra} retries"
            else:
                ending = Ending.RETRY if extra else Ending.SUCCESS
        except (OSError, ValueError) as error:
            ending, cause = Ending.ERROR, f"{type(error).__name__}: {error}".partition("\n")[0]
        elapsed_ps = scene.transport.now_ps - start_ps
        scene.transport.behave()
        if isinstance(provocation, Fault):
            if scene.transport.link_report().pending_faults:
                left_over.append("the fault found no TLP")
            if provocation.fault is FaultKind.LINK_DOWN and not provocation.delay_ps:
                scene.transport.close()
                scene = _Scene(simulator, work)  # trains the link anew
        return Found(ending, cause, elapsed_ps, (*left_over, *scene.differences(counts)))
    finally:
        scene.transport.close()
