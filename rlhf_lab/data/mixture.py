"""Training rows from the data and from synthetic corpora, with set proportions and a set number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.loading import fingerprint
from rlhf_lab.data.settings import Mixture

OWN = "data"
"""Name of the source with the data's own rows."""
HELD_OUT = "prompt is held out"
UNUSED = "not used by the algorithm"
NOT_DRAWN = "over the mixture's rows"


def row_counts(shares: Mapping[str, float], available: Mapping[str, int], rows: int) -> dict[str, int]:
    """Return the number of rows of each source, by the largest-remainder method. They sum to exactly `rows`.

    Example: 100 rows at shares 1 : 1 : 1 are 34, 33 and 33. All remainders are 1/3, and ties go to the first source.

    Args:
        shares: source → its share, in proportion; a source that is not named has none.
        available: source → rows that can be trained on.
        rows: total number of rows; 0 is the largest number that the shares allow without using a row twice.

    Raises:
        DataError: a source has too few rows.
    """
    total = sum(shares.values())
    parts = {name: fraction / total for name, fraction in shares.items() if fraction > 0}
    # 1e-9 compensates rounding: 33 rows at a fraction of 0.33/0.99 allow 99 rows, not 98.999…
    if not rows:
        most_rows = min(available[name] / part for name, part in parts.items())
        rows = math.floor(most_rows + 1e-9)
    counts = {name: math.floor(rows * part + 1e-9) for name, part in parts.items()}
    # stable sort by the negative remainder: the largest remainder comes first
    by_remainder = sorted(parts, key=lambda name: counts[name] - rows * parts[name])
    for name in by_remainder[: rows - sum(counts.values())]:
        counts[name] += 1
    for name, count in counts.items():
        if not 0 < count <= available[name]:
            raise DataError(
                f"mixture: {name} should provide {count} of {rows} rows, but has {available[name]} rows that can be "
                "trained on; lower mixture.rows, change mixture.shares, or generate more rows"
            )
    return counts


def mixed(
    own: Corpus,
    synthetic: Mapping[str, Sequence[Pair]],
    mixture: Mixture,
    uses_row: Callable[[Pair], bool],
    seed: Callable[[str], int],
) -> Corpus:
    """Return the data with the mixture's training rows. The test split stays the data's own.

    Synthetic rows whose prompt is held out are excluded and counted.

    Args:
        uses_row: returns True if the algorithm trains on a row; only those rows are sampled and counted.
        seed: purpose → seed for the selection from a source.
    """
    # synthetic rows may be generated from any prompt, also from held-out ones
    heldout = {pair.identity for pair in own.test}
    reports: dict[str, LoadReport] = {}
    available: dict[str, list[Pair]] = {}
    for name, pairs in {OWN: own.train, **synthetic}.items():
        report = reports[f"{name}/train"] = LoadReport(rows=len(pairs))
        available[name] = [pair for pair in pairs if not _refuse(pair, name, heldout, uses_row, report)]
    fractions = mixture.shares
    if fractions is None:  # all synthetic rows, thus in proportion to their number
        fractions = {name: float(len(available[name])) for name in synthetic}
        if not sum(fractions.values()):
            raise DataError(
                f"needs.{', needs.'.join(synthetic)}: the corpora of these inputs have no row that can be used for "
                "training; generate more rows"
            )
    counts = row_counts(fractions, {name: len(pairs) for name, pairs in available.items()}, mixture.rows)
    train: list[Pair] = []
    for name, count in counts.items():
        pairs = available[name]
        # a prefix of a permutation: a smaller selection is contained in a larger one
        rng = np.random.default_rng(seed(f"mixture/{name}"))
        train += [pairs[i] for i in sorted(rng.permutation(len(pairs))[:count])]
    for name, pairs in available.items():
        report = reports[f"{name}/train"]
        report.kept = counts.get(name, 0)
        if report.kept < len(pairs):
            report.dropped[NOT_DRAWN] = len(pairs) - report.kept
    content = f"{own.fingerprint} {fingerprint(train, own.test)}"
    own_reports = {name: report for name, report in own.report.items() if name == "test"}
    return replace(
        own, train=train, fingerprint=sha256(content.encode()).hexdigest(), report={**own_reports, **reports}
    )


def _refuse(pair: Pair, source: str, heldout: set[str], uses_row: Callable[[Pair], bool], report: LoadReport) -> bool:
    """Return True if a row cannot be trained on, and count the reason in `report`."""
    if source != OWN and pair.identity in heldout:
        report.drop(HELD_OUT)
        return True
    if not uses_row(pair):
        report.drop(UNUSED)
        return True
    return False
