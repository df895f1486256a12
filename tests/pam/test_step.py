"""A step of PAM in time, and PAM beside GPUs that offload."""

from __future__ import annotations

import pytest

from nearkv.pam.comparison import compare_with_offloading, offloading_step
from nearkv.pam.step import PamLoad, pam_step
from nearkv_hdl.spec.attention import Merge
from nearkv_sim.hardware.model_shapes import named_model

LLAMA = named_model("llama3_70b").config
OPT = named_model("opt_175b").config
LOAD = PamLoad(batch=64, attended_tokens=(200, 50, 5))


def test_tiers_attend_side_by_side(pam):
    together = pam_step(pam, LLAMA, LOAD)
    alone = [
        pam_step(
            pam,
            LLAMA,
            PamLoad(batch=64, attended_tokens=[n if t == which else 0 for t, n in enumerate((200, 50, 5))]),
        )
        for which in range(3)
    ]
    assert together.tier_ps == tuple(run.tier_ps[which] for which, run in enumerate(alone))
    assert max(run.step_ps for run in alone) <= together.step_ps < sum(run.step_ps for run in alone)
    assert together.step_ps > LLAMA.layers * max(together.tier_ps)
    assert together.tokens_per_s == 64 * 10**12 / together.step_ps


def test_the_exact_merge_costs_a_barrier(pam):
    exact, papers = (pam_step(pam, LLAMA, LOAD, merge) for merge in (Merge.EXACT, Merge.EXPONENTIAL))
    assert exact.step_ps > papers.step_ps
    names = {task.name for task in papers.schedule.tasks}
    assert {task.name for task in exact.schedule.tasks} - names == {"send_maximum", "share_maximum"}
    # No tier goes on before every tier's maximum is known.
    tasks = exact.schedule.tasks
    for index, task in enumerate(tasks):
        if task.name == "share_maximum":
            waited = [before for before in task.after if tasks[before].name == "send_maximum"]
            assert len(waited) == 3
            assert exact.schedule.start_ps[index] >= max(exact.schedule.end_ps[before] for before in waited)


def test_an_unbalanced_device_takes_longer(pam):
    even, skewed = (
        pam_step(pam, LLAMA, PamLoad(batch=64, attended_tokens=(10, 2000, 0), imbalance=(1.0, factor, 1.0)))
        for factor in (1.0, 4.0)
    )
    assert skewed.tier_ps[0] == even.tier_ps[0]
    assert skewed.tier_ps[1] == pytest.approx(4 * even.tier_ps[1], rel=0.1)
    assert skewed.step_ps > 2 * even.step_ps


def test_migrations_run_beside_and_take_their_links(pam):
    moving = PamLoad(batch=64, attended_tokens=(200, 50, 5), moved_tokens={(0, 1): 14, (1, 2): 2, (2, 1): 0})
    run, still = pam_step(pam, LLAMA, moving), pam_step(pam, LLAMA, LOAD)
    migrations = [task for task in run.schedule.tasks if task.name.startswith("migrate")]
    assert [task.name for task in migrations] == ["migrate_hbm_pim_ddr_pim", "migrate_ddr_pim_ssd_pim"]
    token_bytes = 2 * 80 * 8 * 128 * 2
    assert migrations[0].timing.nbytes == 14 * 64 * token_bytes
    alone_ps = sum(task.timing.time_ps for task in migrations)
    assert still.step_ps <= run.step_ps < still.step_ps + alone_ps


def test_offloading_is_bound_by_its_links_once_the_gpus_are_full(dgx):
    fits = offloading_step(dgx, LLAMA, 2048, 512)
    spills = offloading_step(dgx, LLAMA, 2048, 2048)
    assert fits.busiest == "gpus"
    assert spills.busiest == "gpu_link"
    assert spills.time_ps > 10 * fits.time_ps
    assert spills.bound_ps <= spills.time_ps < 1.1 * spills.bound_ps


def test_pam_gains_where_the_cache_exceeds_the_gpus(pam, dgx):
    """Loads and constants were fixed before the first run; docs/pam.md has the paper's beside ours."""
    light = compare_with_offloading(pam, dgx, OPT, 738, 0.9)
    heavy = compare_with_offloading(pam, dgx, OPT, 738, 2.0)
    assert light.speedup < 2
    assert heavy.speedup > 15
    assert heavy.batch == pytest.approx(light.batch * 2 / 0.9, rel=0.02)
    dense = compare_with_offloading(pam, dgx, OPT, 738, 2.0, sparsity=1)
    assert dense.speedup < heavy.speedup
    assert heavy.scheduling_gain >= 1


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda _, g: pam_step(g, LLAMA, LOAD), "machine dgx_h100 lacks a GPU or PIM tier"),
        (lambda *_: PamLoad(batch=0, attended_tokens=(1, 1, 1)), "batch is 0; allowed: from 1"),
        (lambda *_: PamLoad(batch=1, attended_tokens=(0, 0, 0)), "attended_tokens is .0, 0, 0."),
        (lambda *_: PamLoad(batch=1, attended_tokens=(1, 0, 0), imbalance=(0.5, 1, 1)), "imbalance is"),
        (lambda p, g: compare_with_offloading(p, g, LLAMA, 0, 1.0), "context_tokens is 0"),
        (lambda p, g: compare_with_offloading(p, g, LLAMA, 738, 1000.0), "of the KV cache have no place"),
        (lambda p, _: offloading_step(p, LLAMA, 738, 1), "machine pam has no tier of kind host_memory"),
    ],
)
def test_bad_arguments_are_refused(pam, dgx, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(pam, dgx)


def test_weights_beyond_the_gpus_are_refused(pam):
    class Huge(type(OPT)):
        @property
        def weight_bytes(self) -> int:
            return 10**13

    with pytest.raises(ValueError, match="weights take 10000000000000 bytes; allowed: GPU memory"):
        pam_step(pam, Huge(**vars(OPT)), LOAD)
