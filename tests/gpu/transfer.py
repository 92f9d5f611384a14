"""A ledger of transfer: claims that small worlds confirmed, tested again with models of 30M to 0.5B parameters

`claims.json` registers each claim with the sign that is expected, before it is tested here. One claim is tested per
call; its study resumes from its store, so a claim may take several calls. A sign that does not transfer is a result
like any other: the case passes when the study ran to its end, and the ledger says what came out.
"""

from __future__ import annotations

import json
from pathlib import Path

from kit import Case, Outcome, Target

CLAIMS = Path(__file__).with_name("claims.json")


def cases(target: Target) -> list[Case]:
    """One per claim and model size."""
    rows = json.loads(CLAIMS.read_text(encoding="utf-8"))
    rows = rows[:1] if target.tiny else rows
    return [
        Case(f"{row['id']}-{size}", lambda r=row, s=size: tested(target, r, s), 400)  # type: ignore[misc]
        for row in rows
        for size in row["sizes"]
    ]


MODELS = {
    "30m": ("model.hidden=512", "model.layers=8", "model.heads=8"),
    "0.1b": ("model.hidden=768", "model.layers=12", "model.heads=12"),
    "0.5b": ("model.hidden=1536", "model.layers=16", "model.heads=12"),
}
"""Overrides of `model=small`; parameters without the embedding, which is small in a world of few words."""


def tested(target: Target, row: dict[str, str], size: str) -> Outcome:
    """The claim's difference and its sign, over the study's first three seeds."""
    from recipes import named, run
    from rlhf_lab.studies.frame import read_study
    from rlhf_lab.studies.verdict import verdicts

    overrides = [] if target.tiny else [*MODELS[size], "runtime.dtype=bfloat16"]
    seeds = "seed=0,1" if target.tiny else "seed=0,1,2"
    outputs, _ = run(target, row["study"], "study.processes=1", seeds, *overrides)
    directory = next(path.parent for path in (outputs / "studies").glob("*/study.json") if named(path, row["study"]))
    verdict = verdicts(read_study(directory))[int(row["claim"])]
    if verdict.comparison is None:
        raise RuntimeError(f"the study compared nothing for: {verdict.claim}")
    difference = verdict.comparison.difference.mean
    expected = 1 if row["sign"] == "+" else -1
    kept = "the registered sign" if difference * expected > 0 else "the opposite sign"
    return Outcome({"difference": difference, "verdict": verdict.verdict}, None, f"{kept}: {verdict.claim}")
