"""What the articles say about the arithmetic of attention, on the golden models."""

from __future__ import annotations

import numpy as np

from nearkv.claims.claim import PAM, ClaimInputs, Finding, PublishedClaim, Verdict, unmeasured
from nearkv_hdl.spec.exp_table import EXP_FRACTION, EXP_MANTISSA
from nearkv_sim.golden.exp import Exp2Polynomial
from nearkv_sim.golden.papers import hierarchical_attention

_PAM = "article on PAM"
_SEED = 7


def claims() -> list[PublishedClaim]:
    """The figures of this module."""
    return [
        PublishedClaim(
            "pam/algorithm_1", PAM, "Algorithm 1 computes attention over a hierarchy",
            "exact", "nearkv claims pam/algorithm_1", _algorithm_1,
        ),
        PublishedClaim(
            "pam/exp_error", _PAM, "exp by a polynomial of degree 6", "< 0.1 %",
            "nearkv claims pam/exp_error", _exp_error,
        ),
        PublishedClaim(
            "pam/exp_area", _PAM, "that polynomial takes 40 % less area", "−40 %",
            "python docs/exp_tables.py",
            unmeasured("by this command: minutes of synthesis; docs/exp-unit.md has rivals side by side"),
        ),
    ]  # fmt: skip


def _algorithm_1(_inputs: ClaimInputs) -> Finding:
    rng = np.random.default_rng(_SEED)
    scores, values = rng.normal(0, 3, 512), rng.normal(0, 1, (512, 64))
    weights = np.exp(scores - scores.max())
    exact = weights @ values / weights.sum()
    printed, linear = (
        np.linalg.norm(hierarchical_attention(scores, values, (4, 4, 4), printed=one) - exact)
        / np.linalg.norm(exact)
        for one in (True, False)
    )
    return Finding(
        f"relative error {printed:.1f} as printed, {linear:.0e} with a linear sum",
        Verdict.DIFFERS if printed > 1e-6 else Verdict.HOLDS,
        "Reduction returns m + log Σ, which the next level and the final division read as Σ",
    )


def _exp_error(_inputs: ClaimInputs) -> Finding:
    fractions = np.arange(1 << EXP_FRACTION.width)
    exact = np.exp2(fractions / len(fractions)) * (1 << EXP_MANTISSA.fraction_bits)
    worst = {
        degree: float(np.abs(Exp2Polynomial(degree).mantissa(fractions) / exact - 1).max())
        for degree in (3, 6)
    }
    return Finding(
        f"{worst[6]:.4%}",
        Verdict.HOLDS if worst[6] < 0.001 else Verdict.DIFFERS,
        f"all {len(fractions):,} fractions; degree 3 reaches {worst[3]:.4%} with half the multipliers",
    )
