"""Mix of several sources as one corpus. The settings alone determine which rows are taken and in which order.

Test rows are mixed like training rows. A prompt that another source trains on is not held out. Load report and metrics
have the row counts of every source (`NAME/train`, `NAME/test`) in addition to the totals.
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
from rlhf_lab.data.gsm8k import AnswerKey
from rlhf_lab.data.loading import IN_TRAIN, add_counts, fingerprint
from rlhf_lab.data.rows import fingerprint_with_metadata
from rlhf_lab.data.settings import Mix

OVER_RATIO = "over the ratio of the mix"


def build(settings: Mix) -> Corpus:
    """Load every source and mix them. Raise DataError if a source cannot be read or has no rows left."""
    corpora: dict[str, Corpus] = {
        name: registry.build("data", part) for name, part in settings.sources_by_name().items()
    }
    reports: dict[str, LoadReport] = {}
    train = _mix(settings, corpora, "train", set(), reports)
    # no test prompt may be trained on through another source
    trained_on = {pair.identity for pair in train}
    test = _mix(settings, corpora, "test", trained_on, reports)
    reports["all"] = _sum([reports["train"], reports["test"]])
    used = {pair.prompt for pair in (*train, *test)}
    metadata: dict[str, Any] = {}
    answers: dict[str, str] = {}
    for corpus in reversed(corpora.values()):  # of two sources with the same prompt the first one decides
        metadata |= {prompt: known for prompt, known in corpus.metadata.items() if prompt in used}
        answers |= {prompt: answer for prompt, answer in corpus.answers.items() if prompt in used}
    # a verifier needs an answer for every prompt, so all sources must have them
    has_answers = Capability.ANSWERS in settings.capabilities
    parts = [corpus.fingerprint for corpus in corpora.values()]
    content = f"{fingerprint_with_metadata(fingerprint(train, test), metadata)} {parts}"
    return Corpus(
        name="mix",
        train=train,
        test=test,
        fingerprint=sha256(content.encode()).hexdigest(),
        oracle=AnswerKey(answers) if has_answers else None,
        preferences=Capability.PAIRS in settings.capabilities,
        answers=answers if has_answers else {},
        metadata=metadata,
        report={split: reports[split] for split in ("train", "test", "all", *sorted(reports))},
    )


def _mix(
    settings: Mix, corpora: dict[str, Corpus], split: str, trained_on: set[str], reports: dict[str, LoadReport]
) -> list[Pair]:
    """Return the rows of one split in order, and add their counts to `reports`."""
    seed = settings.seed
    weights = [settings.sources[name].get("weight") for name in corpora]
    available: dict[str, list[Pair]] = {}
    for name, corpus in corpora.items():
        pairs: Sequence[Pair] = getattr(corpus, split)
        available[name] = [pair for pair in pairs if pair.identity not in trained_on]
        report = LoadReport(rows=len(pairs))
        in_train = len(pairs) - len(available[name])
        report.dropped = {IN_TRAIN: in_train} if in_train else {}
        reports[f"{name}/{split}"] = report
    taken = split_counts([len(pairs) for pairs in available.values()], weights, settings.max_pairs)
    mixed: list[Pair] = []
    for index, ((name, pairs), count) in enumerate(zip(available.items(), taken, strict=True)):
        report = reports[f"{name}/{split}"]
        report.kept = count
        if count == 0:
            raise DataError(
                f"data.sources.{name}: none of its {report.rows} rows is left for {split}; add rows, or raise its "
                "weight"
            )
        if count < len(pairs):
            report.dropped[OVER_RATIO] = len(pairs) - count
        # a generator per source: adding rows to one source does not change the selection from another
        rng = np.random.default_rng([seed, index, split == "test"])
        selected = rng.permutation(len(pairs))[:count]
        # sorted, so that the rows of a source keep their order until the final shuffle
        for i in sorted(selected):
            mixed.append(replace(pairs[i], meta={**pairs[i].meta, "part": name}))
    rng = np.random.default_rng([seed, len(corpora), split == "test"])
    order = rng.permutation(len(mixed))
    reports[split] = _sum([reports[f"{name}/{split}"] for name in corpora])
    return [mixed[i] for i in order]


def split_counts(counts: Sequence[int], weights: Sequence[float | None], limit: int = 0) -> list[int]:
    """Return the number of rows to take from each source; all rows if there are no weights.

    With weights, these are the largest numbers in their proportion that use no row twice. Example: 10 and 100 rows with
    weights 1 and 3 give 10 and 30.

    Args:
        weights: weight of each source; None for all if the mix is not weighted.
    """
    # without weights each source is weighted by its size, and all rows are taken
    numbers = [weight for weight in weights if weight] or [count or 1 for count in counts]
    sources = list(zip(counts, numbers, strict=True))
    # the source that is used up first limits all others
    scale = min(count / weight for count, weight in sources)
    if limit:
        scale = min(scale, limit / sum(numbers))
    # min again, because rounding may exceed what the smallest source has
    taken = [min(count, round(scale * weight)) for count, weight in sources]
    # rounding up may exceed the limit; the sources that were rounded up furthest then lose a row
    if limit and sum(taken) > limit:
        by_excess = sorted(range(len(taken)), key=lambda i: scale * numbers[i] - taken[i])
        for i in by_excess[: sum(taken) - limit]:
            taken[i] -= 1
    return taken


def _sum(reports: Sequence[LoadReport]) -> LoadReport:
    total = LoadReport(sum(report.rows for report in reports), sum(report.kept for report in reports))
    for report in reports:
        add_counts(total.dropped, report.dropped)
    return total
