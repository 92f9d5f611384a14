"""The registry of metrics: declared once, found by name, the same wherever a metric is shown."""

from __future__ import annotations

from collections import Counter

import pytest

from rlhf_lab.core import metrics
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import Metric, contradictions, declared
from rlhf_lab.stages import preflight


def test_a_name_has_one_title_one_unit_and_one_direction():
    for attribute in ("title", "unit", "better", "phrase", "column"):
        given = Counter(each.name for each in declared() if getattr(each, attribute))
        assert not [name for name, count in given.items() if count > 1], attribute


def test_a_later_pack_shows_a_metric_as_the_first_one_or_leaves_it_out():
    solved = Metric("solved", "share of tasks", title="solved", better="higher")
    core = [Metric("solved", "of another stage of the pack"), solved, Metric("turns", "of an episode")]
    same = [Metric("solved", "share of programs", title="solved"), Metric("turns", "of an agent")]
    assert contradictions({"core": core, "mine": same}) == []
    other = [Metric("solved", "seconds", title="seconds", unit="s", better="lower"), Metric("turns", "", title="turns")]
    problems = contradictions({"core": core, "mine": other})
    assert len(problems) == 4 and all("leave it out, or give the metric another name" in line for line in problems)
    assert problems[1].startswith("metric solved: pack mine declares unit='s' and pack core unit=''")


def test_a_contradiction_is_refused_before_a_run(monkeypatch):
    """Not when its report is written."""
    monkeypatch.setattr(metrics, "contradictions", lambda by_pack: ["metric solved: two titles"])
    metrics.of_packages.cache_clear()
    with pytest.raises(ConfigError, match="metric solved: two titles"):
        preflight.check([])
