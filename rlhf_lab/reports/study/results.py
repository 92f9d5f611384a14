"""Values used by several sections of a study's page, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlhf_lab.reports.study.policy_view import policy_view
from rlhf_lab.results.answer import Conclusion
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.table import MetricSection, build_sections


@dataclass(frozen=True)
class StudyResults:
    """Study with its comparisons; argument of the section givers of a study."""

    study: Study

    @cached_property
    def comparisons(self) -> list[MetricSection]:
        """Comparison of every level with the baseline, for every metric, the primary one first."""
        return build_sections(self.study)

    @cached_property
    def conclusion(self) -> Conclusion:
        """Answer to the study's question, with its limits."""
        return write_conclusion(self.study, self.comparisons)

    @cached_property
    def policies(self) -> dict[str, Any]:
        return policy_view(self.study)
