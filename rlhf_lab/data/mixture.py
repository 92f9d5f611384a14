"""Training rows from the data and from made corpora, in stated shares and at a stated volume."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.loading import fingerprint
from rlhf_lab.data.mixture_settings import Mixture

OWN = "data"
"""Source of the data's own rows."""
HELD_OUT = "prompt is held out"
UNUSED = "not used by the algorithm"
NOT_DRAWN = "over the mixture's rows"


def row_counts(shares: Mapping[str, float], available: Mapping[str, int], rows: int) -> dict[str, int]:
    """Rows of each source, by largest remainder: their sum is exactly `rows`.

    100 rows at shares 1 : 1 : 1 are 34, 33 and 33: all remainders are 1/3, and of equal ones the first source counts.

    Args:
        shares: in proportion; a source that is not named has none.
        rows: in all; 0 is as many as the shares allow with no row twice.
    Raises:
        DataError: a source has too few rows.
    """
    total = sum(shares.values())
    parts = {name: share / total for name, share in shares.items() if share > 0}
    # 1e-9: 33 rows at a part of 0.33/0.99 allow 99 rows and not 98.999…
    rows = rows or math.floor(min(available[name] / part for name, part in parts.items()) + 1e-9)
    counts = {name: math.floor(rows * part + 1e-9) for name, part in parts.items()}
    by_remainder = sorted(parts, key=lambda name: counts[name] - rows * parts[name])
    for name in by_remainder[: rows - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if not 0 < count <= available[name]:
            raise DataError(
                f"mixture: {count} of {rows} rows are to come from {name}, which has {available[name]} that can be "
                "trained on; lower mixture.rows, change mixture.shares, or make more rows"
            )
    return counts


def mixed(
    own: Corpus,
    made: Mapping[str, Sequence[Pair]],
    mixture: Mixture,
    uses_row: Callable[[Pair], bool],
    seed: Callable[[str], int],
) -> Corpus:
    """The data with other training rows; the held-out split is the data's own.

    Made rows whose prompt is held out are left out and counted.

    Args:
        made: source → its rows.
        uses_row: whether the algorithm trains on a row; only those are drawn and counted.
        seed: purpose → seed of what is drawn of a source.
    """
    held_out = {pair.prompt for pair in own.test}
    reports: dict[str, LoadReport] = {}
    available: dict[str, list[Pair]] = {}
    for name, pairs in {OWN: own.train, **made}.items():
        report = reports[f"{name}/train"] = LoadReport(rows=len(pairs))
        available[name] = [pair for pair in pairs if not _refuse(pair, name, held_out, uses_row, report)]
    shares = mixture.shares
    if shares is None:  # all of them whole, so in proportion to their size
        shares = {name: float(len(available[name])) for name in made}
        if not sum(shares.values()):
            raise DataError(f"needs.{', needs.'.join(made)}: no row is left to train on; make more rows")
    counts = row_counts(shares, {name: len(pairs) for name, pairs in available.items()}, mixture.rows)
    train: list[Pair] = []
    for name, count in counts.items():
        pairs = available[name]
        drawn = np.random.default_rng(seed(f"mixture/{name}")).permutation(len(pairs))[:count]
        train += [pairs[i] for i in sorted(drawn)]
    for name, pairs in available.items():
        report = reports[f"{name}/train"]
        report.kept = counts.get(name, 0)
        if report.kept < len(pairs):
            report.dropped[NOT_DRAWN] = len(pairs) - report.kept
    content = f"{own.fingerprint} {fingerprint(train, own.test)}"
    return replace(
        own,
        train=train,
        fingerprint=sha256(content.encode()).hexdigest(),
        report={**{name: report for name, report in own.report.items() if name == "test"}, **reports},
    )


def _refuse(pair: Pair, source: str, held_out: set[str], uses_row: Callable[[Pair], bool], report: LoadReport) -> bool:
    """Whether a row cannot be trained on; the reason is counted."""
    if source != OWN and pair.prompt in held_out:
        report.drop(HELD_OUT)
        return True
    if not uses_row(pair):
        report.drop(UNUSED)
        return True
    return False
