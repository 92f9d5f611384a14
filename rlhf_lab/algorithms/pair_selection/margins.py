"""margins.jsonl: cross-fitted margins of every training pair, and the check that they belong to this corpus.

One row per pair: `pair` (position in the corpus), `fold`, `margin` and `in_sample` (one value per cycle, oldest first),
and `ref_gap`. The header `margins.json` in the same directory names the corpus and the policy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from rlhf_lab.algorithms.pair_selection.rules import IntArray
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import json_lines, read_json, read_jsonl, write_json, write_text
from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.training.run import Run

HEADER, ROWS = "margins.json", "margins.jsonl"


@dataclass(frozen=True)
class Margins:
    """r(chosen) − r(rejected) of N pairs in C cycles.

    Attributes:
        fold_N: fold of each pair.
        crossfit_CN: margin under the model that was trained on neither the pair nor its prompt.
        in_sample_CN: margin under the next fold's model. The pair was in its training data; in later cycles only
            if it had been selected.
        ref_gap_N: log π(chosen) − log π(rejected) of `policy`, nats per response.
        policy: policy that the cross-fit started from.
    """

    fold_N: IntArray
    crossfit_CN: FloatArray
    in_sample_CN: FloatArray
    ref_gap_N: FloatArray
    policy: str

    def of(self, source: str, cycle: int) -> FloatArray:
        """Return the margins of one cycle (from 1; 0 is the last), (N,). Raise ArtifactError if it does not exist."""
        values_CN = {"crossfit": self.crossfit_CN, "in_sample": self.in_sample_CN}[source]
        if cycle > len(values_CN):
            raise ArtifactError(
                f"selection.cycle={cycle}, but needs.margins has only {len(values_CN)} cycle(s); lower the cycle, "
                "or use needs.margins=pair_margins_2 for the second"
            )
        # cycle 0 becomes index −1, the last one
        return values_CN[cycle - 1]


def corpus_mark(pairs: Sequence[Pair]) -> str:
    """Return a hash of prompts, responses and labels, in order."""
    digest = sha256()
    for pair in pairs:
        digest.update(json.dumps([pair.prompt, pair.chosen, pair.rejected]).encode())
    return digest.hexdigest()[:24]


def write_margins(directory: Path, pairs: Sequence[Pair], margins: Margins) -> None:
    """Write the rows, then the header, so that a directory with a header has all its rows."""
    # Transposed, so that each row has one value per cycle.
    columns = zip(
        margins.fold_N.tolist(),
        margins.crossfit_CN.T.tolist(),
        margins.in_sample_CN.T.tolist(),
        margins.ref_gap_N.tolist(),
        strict=True,
    )
    names = ("fold", "margin", "in_sample", "ref_gap")
    rows = []
    for i, values in enumerate(columns):
        rows.append({"pair": i, **dict(zip(names, values, strict=True))})
    write_text(directory / ROWS, json_lines(rows))
    write_json(directory / HEADER, {"corpus": corpus_mark(pairs), "pairs": len(rows), "policy": margins.policy})


def read_margins(run: Run) -> Margins:
    """Read the margins of `needs.margins`. Raise ArtifactError if they are not those of this run's training pairs."""
    directory = Path(run.needs["margins"])
    pairs = run.corpus.train
    header = read_json(directory / HEADER)
    if header is None:
        raise ArtifactError(
            f"needs.margins={directory} has no {HEADER}; name a run of algorithm=crossfit, or its recipe"
        )
    if header["corpus"] != corpus_mark(pairs):
        raise ArtifactError(
            f"needs.margins={directory} has margins of {header['pairs']} other pairs, not of the {len(pairs)} training "
            f"pairs of data={run.corpus.name}: texts, labels or order differ; cross-fit these pairs, e.g. "
            "needs.margins=pair_margins"
        )
    # Positions must be complete and in order, because margins are matched to pairs by position.
    rows = read_jsonl(directory / ROWS)
    if [row["pair"] for row in rows] != list(range(len(pairs))):
        raise ArtifactError(
            f"{directory / ROWS} is damaged: it has {len(rows)} rows for {len(pairs)} pairs; run its stage again"
        )

    def column(name: str) -> FloatArray:
        return np.array([row[name] for row in rows], dtype=np.float64).T

    fold_N = np.array([row["fold"] for row in rows], dtype=np.int64)
    return Margins(fold_N, column("margin"), column("in_sample"), column("ref_gap"), header["policy"])
