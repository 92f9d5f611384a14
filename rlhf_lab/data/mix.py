"""Several sources as one corpus: which rows are taken and in which order follows from the settings alone.

Held-out rows are mixed as training rows are. A prompt that another source trains on is not held out. The report has the
rows of every source (`NAME/train`, `NAME/test`) beside those of the whole, and so have the metrics of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from rlhf_lab.config import registry
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.facts import with_facts
from rlhf_lab.data.gsm8k import AnswerKey
from rlhf_lab.data.loading import IN_TRAIN, fingerprint
from rlhf_lab.data.settings import Mix

OVER_RATIO = "over the ratio of the mix"


def build(settings: Mix) -> Corpus:
    """Load every source and mix them. Raises DataError when a source cannot be read or has no rows left."""
    sources = settings.sources_by_name()
    corpora: dict[str, Corpus] = {name: registry.build("data", part) for name, part in sources.items()}
    reports: dict[str, LoadReport] = {}
    train = _mix(settings, corpora, "train", set(), reports)
    test = _mix(settings, corpora, "test", {pair.prompt for pair in train} - {""}, reports)
    reports["all"] = _sum([reports["train"], reports["test"]])
    used = {pair.prompt for pair in (*train, *test)}
    facts: dict[str, Any] = {}
    answers: dict[str, str] = {}
    for corpus in corpora.values():
        # Where two sources have a prompt, the first one's columns count.
        facts = {prompt: known for prompt, known in corpus.facts.items() if prompt in used} | facts
        answers = {prompt: answer for prompt, answer in corpus.answers.items() if prompt in used} | answers
    has_answers = Capability.ANSWERS in settings.capabilities
    parts = [corpus.fingerprint for corpus in corpora.values()]
    content = f"{with_facts(fingerprint(train, test), facts)} {parts}"
    return Corpus(
        name="mix",
        train=train,
        test=test,
        fingerprint=sha256(content.encode()).hexdigest(),
        oracle=AnswerKey(answers) if has_answers else None,
        preferences=Capability.PAIRS in settings.capabilities,
        answers=answers if has_answers else {},
        facts=facts,
        report={split: reports[split] for split in ("train", "test", "all", *sorted(reports))},
    )


def _mix(
    settings: Mix,
    corpora: dict[str, Corpus],
    split: str,
    trained_on: set[str],
    reports: dict[str, LoadReport],
) -> list[Pair]:
    """The rows of one split, in order; their counts go to `reports`."""
    seed = settings.seed
    weights = [settings.sources[name].get("weight") for name in corpora]
    available: dict[str, list[Pair]] = {}
    for name, corpus in corpora.items():
        pairs: Sequence[Pair] = getattr(corpus, split)
        available[name] = [pair for pair in pairs if pair.prompt not in trained_on]
        report = LoadReport(rows=len(pairs))
        report.dropped = {IN_TRAIN: len(pairs) - len(available[name])} if len(pairs) > len(available[name]) else {}
        reports[f"{name}/{split}"] = report
    taken = shares([len(pairs) for pairs in available.values()], weights, settings.max_pairs)
    mixed: list[Pair] = []
    for number, ((name, pairs), count) in enumerate(zip(available.items(), taken, strict=True)):
        report = reports[f"{name}/{split}"]
        report.kept = count
        if count == 0:
            raise DataError(f"data.sources.{name}: no row is left for {split} of {report.rows}; add rows or weight")
        if count < len(pairs):
            report.dropped[OVER_RATIO] = len(pairs) - count
        drawn = np.random.default_rng([seed, number, split == "test"]).permutation(len(pairs))[:count]
        mixed += [replace(pairs[i], meta={**pairs[i].meta, "part": name}) for i in sorted(drawn)]
    order = np.random.default_rng([seed, len(corpora), split == "test"]).permutation(len(mixed))
    reports[split] = _sum([reports[f"{name}/{split}"] for name in corpora])
    return [mixed[i] for i in order]


def shares(counts: Sequence[int], weights: Sequence[float | None], limit: int = 0) -> list[int]:
    """Rows to take of each source: as many as the weights allow with no row twice; all of them without weights.

    10 and 100 rows at weights 1 and 3: the first source ends the mix, with 10 and 30.

    Args:
        limit: most rows in all; 0 is none.
    """
    numbers = [weight for weight in weights if weight] or [count or 1 for count in counts]
    scale = min(count / weight for count, weight in zip(counts, numbers, strict=True))
    if limit:
        scale = min(scale, limit / sum(numbers))
    return [min(count, round(scale * weight)) for count, weight in zip(counts, numbers, strict=True)]


def _sum(reports: Sequence[LoadReport]) -> LoadReport:
    total = LoadReport(sum(report.rows for report in reports), sum(report.kept for report in reports))
    for report in reports:
        for reason, count in report.dropped.items():
            total.dropped[reason] = total.dropped.get(reason, 0) + count
    return total
