"""A judge as gold: its rubric decides the key of a stage, and where it cannot be gold it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import ONE_LAYER, checked, planned, toy_rows, write_pairs

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.copies import copies
from rlhf_lab.packs.judging.judges.backends.settings import gold_rubric, is_requested
from rlhf_lab.stages import preflight


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with pairs.jsonl."""
    directory = tmp_path_factory.mktemp("gold")
    write_pairs(directory / "pairs.jsonl", toy_rows(40))
    return directory


def on_pairs(files: Path) -> tuple[str, ...]:
    return ("data=pairs", f"data.path={files / 'pairs.jsonl'}", *ONE_LAYER)


RUBRIC = "name: length\nscale: {low: 1, high: 5}\ncriteria: {length: is long}\n"
SERVED = ("judge=openai_compatible", "judge.model=m")


def test_a_judge_is_gold_by_its_rubric(files):
    rubric = files / "length.yaml"
    rubric.write_text(RUBRIC)
    stage = planned("grpo", *on_pairs(files), *SERVED, f"needs.judge={rubric}")
    assert is_requested(stage.config) and gold_rubric(stage.config) == str(rubric)
    assert "judge" not in stage.sources() and not any(copy.name.startswith("gold") for copy in copies(stage))
    assert "rlhf_lab/packs/judging/rewards/judge.py:by_judge" in stage.code
    shipped = planned("grpo", *on_pairs(files), *SERVED, "needs.judge=assistant")
    other = planned("grpo", *on_pairs(files), "judge=openai_compatible", "judge.model=n", "needs.judge=assistant")
    without = planned("grpo", *on_pairs(files), *SERVED)
    keys = [each.settings_key for each in (stage, shipped, other, without)]
    assert len(set(keys)) == 4
    assert without.settings_key == planned("grpo", *on_pairs(files)).settings_key
    copied = files / "copy.yaml"
    copied.write_text(RUBRIC)  # the content of a rubric counts, not its name
    assert planned("grpo", *on_pairs(files), *SERVED, f"needs.judge={copied}").settings_key == stage.settings_key


def test_what_a_judge_cannot_be_gold_of_is_refused(files):
    judged = (*on_pairs(files), *SERVED, "needs.judge=assistant")
    with pytest.raises(ConfigError, match=r"needs.gold and needs.judge name two golds"):
        checked("grpo", *judged, "needs.gold=reward_model")
    with pytest.raises(ConfigError, match=r"reward=judge would use the same judge as the gold"):
        checked("grpo", *judged, "needs.reward=null", "reward=judge")
    with pytest.raises(ConfigError, match=r"needs.judge: data=mini_hh has its own gold"):
        checked("grpo", "needs.judge=assistant")
    with pytest.raises(ConfigError, match=r"judge=simulated needs a true reward that is known"):
        checked("grpo", *on_pairs(files), "needs.judge=assistant", "judge=simulated")
    problems = preflight.problems(planned("grpo", *on_pairs(files), *SERVED, "needs.judge=nowhere.yaml"))
    assert any(problem.startswith("needs.judge: rubric=nowhere.yaml") for problem in problems)


def test_the_judge_of_a_step_report_is_still_a_model():
    stage = planned("step_report", "data=arithmetic")
    assert gold_rubric(stage.config) == "" and "judge" in stage.sources()


def test_a_judge_as_gold_is_refused_where_nothing_is_measured(files):
    """Also by a stage that takes any role as a policy."""
    with pytest.raises(ConfigError, match=r"needs\.judge is not used by algorithm=safety"):
        checked("safety_eval", *on_pairs(files), "+needs.judge=criteria.yaml")
    with pytest.raises(ConfigError, match=r"needs\.gold is not used by algorithm=safety"):
        checked("safety_eval", *on_pairs(files), "needs.gold=reward_model")
