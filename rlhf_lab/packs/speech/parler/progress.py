"""Progress of a training in a worker: its weights and its optimizer after each round, from which it resumes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import make_dir, read_json, write_text
from rlhf_lab.packs.speech.parler.client import CodecWorker
from rlhf_lab.packs.speech.parler.rounds import RoundMetrics

PROGRESS = "training.json"
"""File next to the weights: the settings of the training and the metrics of its finished rounds."""


class TrainingProgress:
    """Finished rounds of a training in a directory: `model/` with PROGRESS, and `rounds.jsonl`.

    The model and its progress are one directory that is replaced as a whole, so they always belong to the same round.
    If an adapter is trained, `model/` contains only the adapter.

    Args:
        directory: directory of the training; new, empty or of an interrupted training.
        origin: setting → JSON value of everything that decides the result.
    """

    def __init__(self, directory: Path, origin: dict[str, Any]):
        self.directory, self.origin = directory, origin
        self.model = directory / "model"
        self.rounds: list[dict[str, Any]] = []
        # Names with a dot are files that a killed process did not finish.
        others = [path for path in directory.glob("*") if not path.name.startswith(".")]
        if (self.model / PROGRESS).is_file():
            self._read()
        elif others:
            raise ConfigError(
                f"to={directory} is not empty and has no {self.model.name}/{PROGRESS}; name a new directory"
            )
        make_dir(directory)

    def save(self, worker: CodecWorker, metrics: RoundMetrics, *, is_last: bool) -> None:
        """Write the model, or its adapter, after a round.

        The last one has no optimizer, because nothing continues from it.
        """
        self.rounds.append(dataclasses.asdict(metrics))
        progress = json.dumps({"origin": self.origin, "rounds": self.rounds}, indent=1)
        write = worker.save_adapter if worker.has_adapter else worker.save
        write(self.model, with_optimizer=not is_last, files={PROGRESS: progress})
        self._write_rounds()

    def _read(self) -> None:
        stored = read_json(self.model / PROGRESS)
        # Stored values have passed through JSON, so the present ones do too before they are compared.
        present = json.loads(json.dumps(self.origin))
        keys = sorted({*stored["origin"], *present})
        changed = [key for key in keys if stored["origin"].get(key) != present.get(key)]
        if changed:
            raise ConfigError(
                f"to={self.directory} has a training with other values of {', '.join(changed)}; repeat its command to "
                "continue it, or name a new directory"
            )
        self.rounds = stored["rounds"]
        self._write_rounds()  # a process may have been killed between the model and this file

    def _write_rounds(self) -> None:
        write_text(self.directory / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in self.rounds))
