"""Features on disk by the content of the clip they were measured on: one JSON line each.

Lines are appended in groups, and what was measured before an interruption, or an error, is written. A line that a kill
cut off is left out when the file is read, and removed before the next one is written.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import append_jsonl, make_folder, read_jsonl

SECONDS_BETWEEN_WRITES = 5.0
"""What a power cut can cost. Each write waits for the disk, which takes longer than measuring a clip."""


class FeatureCache:
    """Features by key. Used in a `with` block, at whose end what is new is written.

    Args:
        path: the file; None keeps nothing.
        count: number of features of a clip.

    Raises ArtifactError for a file that is damaged, or has another number of features.
    """

    def __init__(self, path: Path | None, count: int):
        self.path = path
        self._features: dict[str, NDArray[np.float64]] = {}
        self._unwritten: list[dict[str, Any]] = []
        self._written_at = time.monotonic()
        for number, row in enumerate(read_jsonl(path) if path else [], start=1):
            values = row.get("features")
            if not isinstance(row.get("clip"), str) or not isinstance(values, list) or len(values) != count:
                raise ArtifactError(
                    f"{path}, line {number}: expected a clip's digest and {count} features; delete that line, or the "
                    "file, which is then made again"
                )
            self._features[row["clip"]] = np.array(values, dtype=np.float64)  # null becomes NaN

    def __enter__(self) -> FeatureCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write()

    def get(self, key: str) -> NDArray[np.float64] | None:
        return self._features.get(key)

    def add(self, key: str, features: NDArray[np.float64]) -> None:
        self._features[key] = features
        if self.path is None:
            return
        # JSON has no NaN
        self._unwritten.append({"clip": key, "features": [None if np.isnan(x) else float(x) for x in features]})
        if time.monotonic() - self._written_at > SECONDS_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        if self.path is None or not self._unwritten:
            return
        make_folder(self.path.parent)
        # two processes that append at once would take each other's unfinished line for one of a killed process
        with FileLock(self.path.with_name(f"{self.path.name}.lock")):
            append_jsonl(self.path, self._unwritten)
        self._unwritten = []
        self._written_at = time.monotonic()
