"""What the articles say about attention itself, measured on a trace of a real model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkv.claims.claim import HILLINFER, ClaimInputs, Finding, PublishedClaim, Verdict
from nearkv.experiments.config import ExperimentConfig, PolicyConfig, ScoreFormat
from nearkv.experiments.runner import open_device, run_experiment

SHARES = (0.10, 0.20)  # of the context that is selected: the range of the articles' α
NEAR_TOKENS = 20
SCORED_STEPS = 16  # of every stream, for the two formats: scoring all keys is what takes the time
TRACE = "nearkv claims --trace data/smollm2-135m-austen-4096.safetensors"


def claims() -> list[PublishedClaim]:
    """The figures of this module."""
    article = "article on PAM"
    return [
        PublishedClaim(
            "pam/locality_85", article, "a token accessed in a step is accessed again in the next",
            "85 %", f"{TRACE} pam/locality_85", _locality, needs_trace=True,
        ),
        PublishedClaim(
            "pam/near_20", article, f"important tokens lie within ±{NEAR_TOKENS} of the current one",
            "±20 tokens", f"{TRACE} pam/near_20", _near, needs_trace=True,
        ),
        PublishedClaim(
            "hillinfer/alpha", "article on HillInfer", "α = 10 to 20 % of the tokens suffices",
            "10–20 %", f"{TRACE} hillinfer/alpha", _alpha, needs_trace=True,
        ),
        PublishedClaim(
            "hillinfer/sinks", "article on HillInfer", "attention sinks are worth pinning", "(no figure)",
            f"{TRACE} hillinfer/sinks", _sinks, needs_trace=True,
        ),
        PublishedClaim(
            "hillinfer/accuracy_int8", "article on HillInfer", "scoring in low precision loses accuracy",
            "< 0.5 %", f"{TRACE} hillinfer/accuracy_int8",
            lambda inputs: _loss(inputs, ScoreFormat.INT8), needs_trace=True,
        ),
        PublishedClaim(
            "hillinfer/accuracy_int4", "article on HillInfer", "and in the emergency mode's INT4",
            "< 0.5 %", f"{TRACE} hillinfer/accuracy_int4",
            lambda inputs: _loss(inputs, ScoreFormat.INT4), needs_trace=True,
        ),
        PublishedClaim(
            "pam/importance_thresholds", article,
            "importance (decay 0.9, access counts) splits tokens at 5.0 and 1.0", "hot > 5.0, cold ≤ 1.0",
            f"{TRACE} pam/importance_thresholds", _thresholds, needs_trace=True,
        ),
        PublishedClaim(
            "hillinfer/pseudo_code", HILLINFER + ", article's pseudo-code",
            "new_tokens[:α·len] keeps the head of the new tokens", "newest tokens pinned",
            "nearkv claims hillinfer/pseudo_code", _pseudo_code,
        ),
    ]  # fmt: skip


def _locality(inputs: ClaimInputs) -> Finding:
    again = [
        float(np.mean([(one[:-1] & one[1:]).sum() / one[:-1].sum() for one in inputs.top(share)]))
        for share in SHARES
    ]
    verdict = Verdict.HOLDS if max(again) >= 0.85 else Verdict.DIFFERS
    return Finding(f"{again[0]:.0%} of the top 10 %, {again[1]:.0%} of the top 20 %", verdict, "per KV head")


def _near(inputs: ClaimInputs) -> Finding:
    trace = inputs.trace
    mass, members = [], []
    for weights, chosen in zip(inputs.weights, inputs.top(SHARES[0]), strict=True):
        position = trace.first_query_position + np.arange(len(weights))
        near = np.arange(weights.shape[1]) >= position[:, None] - NEAR_TOKENS  # nothing lies behind it
        mass.append(float((weights * near).sum() / len(weights)))
        members.append(float((chosen & near).sum() / chosen.sum()))
    share = float(np.mean(mass))
    return Finding(
        f"{share:.0%} of the attention, {float(np.mean(members)):.1%} of the top 10 %'s members",
        Verdict.HOLDS if share > 0.5 else Verdict.DIFFERS,
        "the window holds much attention in few tokens, most important tokens lie elsewhere",
    )


def _alpha(inputs: ClaimInputs) -> Finding:
    kept = [_oracle_mass(inputs, share) for share in SHARES]
    return Finding(
        f"{kept[0]:.1%} of the attention on the best 10 %, {kept[1]:.1%} on the best 20 %",
        Verdict.HOLDS if kept[1] >= 0.95 else Verdict.DIFFERS,
        "chosen with the step's true attention; what a policy reaches is in its own row of a run",
    )


def _oracle_mass(inputs: ClaimInputs, share: float) -> float:
    pairs = zip(inputs.weights, inputs.top(share), strict=True)
    return float(np.mean([(weights * chosen).sum(axis=1).mean() for weights, chosen in pairs]))


def _sinks(inputs: ClaimInputs) -> Finding:
    first = [float(weights[:, 0].mean()) for weights in inputs.weights]
    return Finding(
        f"{min(first):.1%} to {max(first):.1%} of a head's attention on the first token",
        Verdict.HOLDS if max(first) > 0.05 else Verdict.DIFFERS,
        "depends on the head; pinning costs four tokens",
    )


def _loss(inputs: ClaimInputs, key_format: ScoreFormat) -> Finding:
    """Attention lost because a quantised score selects, not the exact one, relative to the exact top 10 %."""
    trace = inputs.trace
    steps = min(SCORED_STEPS, trace.steps)
    config = ExperimentConfig(
        trace=inputs.trace_path,
        policy=PolicyConfig("recency"),
        format=key_format,
        uniform_score=True,
        select_fraction=SHARES[0],
        steps=steps,
    )
    with open_device(config) as device:
        result = run_experiment(config, trace, device)
    kept = np.mean([record.mass_kept for record in result.records])
    pairs = zip(inputs.weights, inputs.top(SHARES[0]), strict=True)
    best = np.mean([(weights * chosen)[:steps].sum(axis=1).mean() for weights, chosen in pairs])
    loss = float(1 - kept / best)
    return Finding(
        f"{loss:.3%} of the attention that the exact top 10 % holds",
        Verdict.HOLDS if loss < 0.005 else Verdict.DIFFERS,
        "what the article's accuracy is of, it does not say; attention mass is ours",
    )


def _thresholds(inputs: ClaimInputs) -> Finding:
    """The article's rule with the count read in two ways, on the exact top 10 % as accesses."""
    decay, hot_above, cold_up_to, interval = 0.9, 5.0, 1.0, 50
    per_step, per_interval = [], []
    trace = inputs.trace
    for chosen in inputs.top(SHARES[0]):
        in_context = chosen[:, : trace.first_query_position].astype(np.float64)
        one = np.zeros(in_context.shape[1])
        for row in in_context:
            one = decay * one + (1 - decay) * row
        per_step.append(_classes(one, hot_above, cold_up_to))
        many = np.zeros(in_context.shape[1])
        for start in range(0, len(in_context) - interval + 1, interval):
            many = decay * many + (1 - decay) * in_context[start : start + interval].sum(axis=0)
        per_interval.append(_classes(many, hot_above, cold_up_to))
    step, whole = np.mean(per_step, axis=0), np.mean(per_interval, axis=0)
    return Finding(
        f"hot / warm: {step[0]:.0%} / {step[1]:.0%} with an access per step;"
        f" {whole[0]:.1%} / {whole[1]:.1%} with accesses since the last evaluation",
        Verdict.PARTLY if step[0] == 0 and whole[0] > 0 else Verdict.DIFFERS,
        f"with one access per step importance never exceeds 1; counts of {interval} steps reach 5.0",
    )


def _classes(importance: NDArray[np.float64], hot_above: float, cold_up_to: float) -> tuple[float, float]:
    hot = importance > hot_above
    return float(hot.mean()), float((~hot & (importance > cold_up_to)).mean())


def _pseudo_code(_inputs: ClaimInputs) -> Finding:
    new_tokens, alpha = np.arange(100), 0.2
    kept = new_tokens[: int(alpha * len(new_tokens))]
    return Finding(
        f"keeps tokens {kept[0]} to {kept[-1]} of 100",
        Verdict.HOLDS if kept[-1] == new_tokens[-1] else Verdict.DIFFERS,
        "the oldest of the new tokens; its text, and policy hill, pin the newest",
    )
