"""What several sections of a study's page show, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlhf_lab.reports.study.policy_view import policy_view
from rlhf_lab.results.answer import Answer
from rlhf_lab.studies.finding import write_finding
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.table import MetricSection, build_sections


@dataclass(frozen=True)
class StudyResults:
    """A study with its comparisons; what the givers of a study's sections take."""

    study: Study

    @cached_property
    def comparisons(self) -> list[MetricSection]:
        """Every level against the baseline, for every metric, the primary one first."""
        return build_sections(self.study)

    @cached_property
    def finding(self) -> Answer:
        return write_finding(self.study, self.comparisons)

    @cached_property
    def policies(self) -> dict[str, Any]:
        """What the runs of completed jobs show of their policies, see `policy_view`."""
        return policy_view(self.study)
