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
    by_both = "is defined twice, by pack core and by pack mine; rename one of them, or uninstall one of the packages"
    assert problems == [f"metric solved (title, unit, better) {by_both}", f"metric turns (title) {by_both}"]


def test_a_contradiction_is_refused_before_a_run(monkeypatch):
    """Not when its report is written."""
    monkeypatch.setattr(metrics, "contradictions", lambda by_pack: ["metric solved: two titles"])
    metrics.of_packages.cache_clear()
    with pytest.raises(ConfigError, match="metric solved: two titles"):
        preflight.check([])
