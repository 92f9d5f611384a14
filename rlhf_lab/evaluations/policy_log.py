"""What an evaluation writes of each policy, so that an interrupted one resumes where it stopped.

Rows (one per sampled reply) go to evaluation.jsonl, summaries (one per policy) to policies.jsonl. A policy with a
stored summary is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core import ranks
from rlhf_lab.core.files import append_jsonl, file_digest, fingerprint, read_jsonl, read_rows, truncate
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.training.run import Run


class PolicyLog:
    """The policies of a run that are evaluated so far.

    Attributes:
        policies: their summaries, in the order of evaluation.
    """

    def __init__(self, run: Run):
        self.run = run
        self._rows_path = run.folder / "evaluation.jsonl"
        self._policies_path = run.folder / "policies.jsonl"
        self.policies = ranks.on_main(self._restore)

    def _restore(self) -> list[dict[str, Any]]:
        """Summaries of an earlier attempt up to the first with a damaged summary or rows; both files are cut there."""
        policies, summary_ends = read_rows(self._policies_path)
        intact = self._count_intact(policies)
        summaries_end = summary_ends[intact - 1] if intact else 0
        rows_end = policies[intact - 1]["rows_end"] if intact else 0
        file_size = self._policies_path.stat().st_size if self._policies_path.exists() else 0
        if file_size > summaries_end:
            files = f"{self._policies_path} or evaluation.jsonl"
            self.run.note(f"{files} was cut or damaged after policy {intact}: evaluated again")
        truncate(self._policies_path, summaries_end)
        truncate(self._rows_path, rows_end)
        return policies[:intact]

    def _count_intact(self, policies: Sequence[dict[str, Any]]) -> int:
        """How many leading policies have the summary and the rows that their checksum was taken of."""
        rows_begin = 0  # byte of evaluation.jsonl: a policy's rows begin where those of the policy before it end
        for number, policy in enumerate(policies):
            if self._seal(policy, rows_begin) != policy.get("sha256"):
                return number
            rows_begin = policy.get("rows_end", 0)
        return len(policies)

    def _seal(self, policy: dict[str, Any], rows_begin: int) -> str:
        """Checksum of a policy's summary and of its rows, which begin at byte `rows_begin` of evaluation.jsonl."""
        summary = {key: value for key, value in policy.items() if key != "sha256"}
        rows_end = policy.get("rows_end", 0)
        rows_digest = ""
        if self._rows_path.exists():
            rows_digest = file_digest(self._rows_path, rows_begin, rows_end)
        return fingerprint([summary, rows_digest])

    def find(self, name: str) -> dict[str, Any] | None:
        """The summary of a policy that this or an earlier attempt evaluated, else None."""
        return next((policy for policy in self.policies if policy["name"] == name), None)

    def add(self, name: str, rows: list[dict[str, Any]], metrics: Mapping[str, Estimate]) -> dict[str, Any]:
        """Log a policy: its rows, then its summary. Rows without a summary are dropped when the stage resumes."""
        summary: dict[str, Any] = {
            "name": name,
            "metrics": {key: estimate.to_dict() for key, estimate in metrics.items()},
            "rows_end": append_jsonl(self._rows_path, rows),
        }
        rows_begin = self.policies[-1]["rows_end"] if self.policies else 0
        summary["sha256"] = self._seal(summary, rows_begin)
        append_jsonl(self._policies_path, [summary])
        self.policies.append(summary)
        return summary

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The logged rows of one policy, prompt-major."""
        return ranks.on_main(lambda: [row for row in read_jsonl(self._rows_path) if row["policy"] == name])
