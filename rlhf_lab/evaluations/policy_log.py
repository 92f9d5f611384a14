"""Log of an evaluation, from which an interrupted one resumes.

Rows (one per sampled response) go to evaluation.jsonl, summaries (one per policy) to policies.jsonl. A policy with a
stored summary is not evaluated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_lab.core import ranks
from rlhf_lab.core.files import append_jsonl, file_digest, fingerprint, read_jsonl, read_rows, truncate
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.training.run import Run


def policy_name(run: Run, role: str) -> str:
    """Return a policy's name: its role, or "STAGE (reference)" if it is the reference and a stage of the recipe."""
    source = str(run.config.needs[role])
    return role if role != "reference" or "/" in source else f"{source} (reference)"


class PolicyLog:
    """Policies of a run that have been evaluated so far.

    Attributes:
        policies: their summaries, in the order of evaluation.
    """

    def __init__(self, run: Run):
        self.run = run
        self._rows_path = run.directory / "evaluation.jsonl"
        self._policies_path = run.directory / "policies.jsonl"
        self.policies = ranks.on_main(self._restore)

    def _restore(self) -> list[dict[str, Any]]:
        """Return the intact summaries of an earlier attempt. Both files are truncated at the first damaged policy."""
        policies, summary_ends = read_rows(self._policies_path)
        intact = self._count_intact(policies)
        summaries_end = summary_ends[intact - 1] if intact else 0
        rows_end = policies[intact - 1]["rows_end"] if intact else 0
        file_size = self._policies_path.stat().st_size if self._policies_path.exists() else 0
        if file_size > summaries_end:
            files = f"{self._policies_path} or evaluation.jsonl"
            self.run.note(
                f"{files} was cut or damaged after policy {intact}: the policies after it are evaluated again"
            )
        # both files end after the last intact policy, so new ones can be appended
        truncate(self._policies_path, summaries_end)
        truncate(self._rows_path, rows_end)
        return policies[:intact]

    def _count_intact(self, policies: Sequence[dict[str, Any]]) -> int:
        """Return the number of leading policies whose summary and rows match their checksum."""
        rows_start = 0  # byte offset in evaluation.jsonl: the rows of a policy start where those of the one before end
        for index, policy in enumerate(policies):
            if self._seal(policy, rows_start) != policy.get("sha256"):
                return index
            rows_start = policy.get("rows_end", 0)
        return len(policies)

    def _seal(self, policy: dict[str, Any], rows_start: int) -> str:
        """Return the checksum of a policy's summary and of its rows, which start at byte `rows_start` of the file."""
        summary = {key: value for key, value in policy.items() if key != "sha256"}
        rows_end = policy.get("rows_end", 0)
        rows_digest = ""
        if self._rows_path.exists():
            rows_digest = file_digest(self._rows_path, rows_start, rows_end)
        return fingerprint([summary, rows_digest])

    def find(self, name: str) -> dict[str, Any] | None:
        return next((policy for policy in self.policies if policy["name"] == name), None)

    def add(self, name: str, rows: list[dict[str, Any]], metrics: Mapping[str, Estimate]) -> dict[str, Any]:
        """Log a policy: its rows, then its summary. Rows without a summary are dropped when the stage resumes."""
        summary: dict[str, Any] = {
            "name": name,
            "metrics": {key: estimate.to_dict() for key, estimate in metrics.items()},
            "rows_end": append_jsonl(self._rows_path, rows),
        }
        rows_start = self.policies[-1]["rows_end"] if self.policies else 0
        summary["sha256"] = self._seal(summary, rows_start)
        append_jsonl(self._policies_path, [summary])
        self.policies.append(summary)
        return summary

    def rows(self, name: str) -> list[dict[str, Any]]:
        return ranks.on_main(lambda: [row for row in read_jsonl(self._rows_path) if row["policy"] == name])
