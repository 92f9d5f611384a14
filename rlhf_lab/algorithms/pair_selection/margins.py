"""margins.jsonl: the margins of a cross-fit for every training pair, and the check that they are of this corpus.

One row per pair: `pair` (position in the corpus), `fold`, `margin` and `in_sample` (one value per cycle, the oldest
first), `ref_gap`. `margins.json` beside it names the corpus and the policy.
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
from rlhf_lab.core.files import read_json, read_jsonl, write_json, write_text
from rlhf_lab.core.types import FloatArray, Pair
from rlhf_lab.training.run import Run

HEADER, ROWS = "margins.json", "margins.jsonl"


@dataclass(frozen=True)
class Margins:
    """r(chosen) − r(rejected) of N pairs in C cycles.

    Attributes:
        fold_N: fold of each pair.
        crossfit_CN: margin under the model that saw neither the pair nor its prompt.
        in_sample_CN: margin under the next fold's model, which was given the pair to train on (in later
            cycles: if it was chosen).
        ref_gap_N: log π(chosen) − log π(rejected) of `policy`, nats per reply.
        policy: the policy that the cross-fit started from.
    """

    fold_N: IntArray
    crossfit_CN: FloatArray
    in_sample_CN: FloatArray
    ref_gap_N: FloatArray
    policy: str

    def of(self, source: str, cycle: int) -> FloatArray:
        """Margins of one cycle (from 1; 0 is the last), (N,). Raises ArtifactError when there is no such cycle."""
        values_CN = {"crossfit": self.crossfit_CN, "in_sample": self.in_sample_CN}[source]
        if cycle > len(values_CN):
            raise ArtifactError(
                f"selection.cycle={cycle}, but needs.margins has {len(values_CN)} cycle(s); use "
                "needs.margins=pair_margins_2 for the second"
            )
        return values_CN[cycle - 1]


def corpus_mark(pairs: Sequence[Pair]) -> str:
    """A hash of prompts, replies and labels, in order."""
    digest = sha256()
    for pair in pairs:
        digest.update(json.dumps([pair.prompt, pair.chosen, pair.rejected]).encode())
    return digest.hexdigest()[:24]


def write_margins(folder: Path, pairs: Sequence[Pair], margins: Margins) -> None:
    """Write the rows, then the header: a folder with a header has all its rows."""
    columns = zip(
        margins.fold_N.tolist(),
        margins.crossfit_CN.T.tolist(),
        margins.in_sample_CN.T.tolist(),
        margins.ref_gap_N.tolist(),
        strict=True,
    )
    names = ("fold", "margin", "in_sample", "ref_gap")
    rows = [{"pair": i, **dict(zip(names, values, strict=True))} for i, values in enumerate(columns)]
    write_text(folder / ROWS, "".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / HEADER, {"corpus": corpus_mark(pairs), "pairs": len(rows), "policy": margins.policy})


def read_margins(run: Run) -> Margins:
    """The margins of `needs.margins`. Raises ArtifactError unless they are of this run's training pairs."""
    folder = Path(run.needs["margins"])
    pairs = run.corpus.train
    header = read_json(folder / HEADER)
    if header is None:
        raise ArtifactError(f"needs.margins={folder} has no {HEADER}; name a run of algorithm=crossfit, or its recipe")
    if header["corpus"] != corpus_mark(pairs):
        raise ArtifactError(
            f"needs.margins={folder} are margins of {header['pairs']} other pairs, not of the {len(pairs)} training "
            f"pairs of data={run.corpus.name}: texts, labels or order differ; cross-fit these, e.g. "
            "needs.margins=pair_margins"
        )
    rows = read_jsonl(folder / ROWS)
    if [row["pair"] for row in rows] != list(range(len(pairs))):
        raise ArtifactError(f"{folder / ROWS} is damaged: it has {len(rows)} rows for {len(pairs)} pairs; run it again")

    def column(name: str) -> FloatArray:
        return np.array([row[name] for row in rows], dtype=np.float64).T

    fold_N = np.array([row["fold"] for row in rows], dtype=np.int64)
    return Margins(fold_N, column("margin"), column("in_sample"), column("ref_gap"), header["policy"])
