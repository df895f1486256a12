"""All published figures, in one list."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from nearkv.claims.claim import ClaimInputs, PublishedClaim, record
from nearkv.command import Progress

ENTRY_POINT_GROUP = "nearkv.claims"  # functions without arguments that return a list of claims


def published_claims(names: Sequence[str] = ()) -> list[PublishedClaim]:
    """Every figure, or those named; a name with nothing behind its slash stands for all of an article.

    Raises:
        ValueError: an unknown name.

    """
    areas = [point.load() for point in entry_points(group=ENTRY_POINT_GROUP)]
    known = sorted((claim for area in areas for claim in area()), key=lambda claim: claim.name)
    articles = sorted({claim.name.partition("/")[0] for claim in known})
    for name in names:
        if name not in articles and all(claim.name != name for claim in known):
            raise ValueError(f"claim is {name!r}; allowed: {', '.join(articles)}, or a name that they list")
    if not names:
        return known
    return [claim for claim in known if {claim.name, claim.name.partition("/")[0]} & set(names)]


def measure_all(
    claims: Sequence[PublishedClaim], inputs: ClaimInputs, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """`record` of each claim, in order."""
    found = []
    for done, claim in enumerate(claims, 1):
        found.append(record(claim, inputs))
        if progress is not None:
            progress(done, len(claims))
    return found


def claims_text(records: Sequence[dict[str, Any]]) -> str:
    """For a terminal: a paragraph per claim, then how many there are of each verdict."""
    lines = []
    for entry in records:
        lines += [
            f"{entry['name']}: {entry['verdict']}",
            f"  theirs  {entry['theirs']}: {entry['statement']} ({entry['source']})",
            f"  ours    {entry['ours']}" + (f"; {entry['note']}" if entry["note"] else ""),
            f"  again   {entry['command']}",
            "",
        ]
    counts: dict[str, int] = {}
    for entry in records:
        counts[entry["verdict"]] = counts.get(entry["verdict"], 0) + 1
    total = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    return "\n".join([*lines, f"{len(records)} claims: {total}"])
