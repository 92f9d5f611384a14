"""Cache of features on disk, keyed by the content of the clip; one JSON line per clip.

Lines are appended in groups. On an interruption or error, all measured features are written. If the process is killed
while it writes, the incomplete line is ignored when the file is read, and removed before the next write.
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
from rlhf_lab.core.files import append_jsonl, make_dir, read_jsonl

SECONDS_BETWEEN_WRITES = 5.0
"""Minimum time between writes. A power cut loses the features measured since the last write.

Each write waits for the disk, which takes longer than measuring a clip.
"""


class FeatureCache:
    """Features by key. Use it in a `with` block; leaving the block writes the new entries.

    Args:
        path: file of the cache; None disables writing.
        count: number of features of a clip.

    Raises ArtifactError if the file is damaged or has a different number of features.
    """

    def __init__(self, path: Path | None, count: int):
        self.path = path
        self._features: dict[str, NDArray[np.float64]] = {}
        self._unwritten: list[dict[str, Any]] = []
        self._written_at = time.monotonic()
        # later lines replace earlier ones with the same key
        for number, row in enumerate(read_jsonl(path) if path else [], start=1):
            values = row.get("features")
            if not isinstance(row.get("clip"), str) or not isinstance(values, list) or len(values) != count:
                raise ArtifactError(
                    f"{path}, line {number}: expected the digest of a clip and {count} features; delete the line, or "
                    "delete the file to measure all clips again"
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
        # NaN becomes null, because JSON has no NaN
        self._unwritten.append({"clip": key, "features": [None if np.isnan(x) else float(x) for x in features]})
        if time.monotonic() - self._written_at > SECONDS_BETWEEN_WRITES:
            self._write()

    def _write(self) -> None:
        if self.path is None or not self._unwritten:
            return
        make_dir(self.path.parent)
        # without the lock, a process could remove a line that another one is writing, as if that one had been killed
        with FileLock(self.path.with_name(f"{self.path.name}.lock")):
            append_jsonl(self.path, self._unwritten)
        self._unwritten = []
        self._written_at = time.monotonic()
