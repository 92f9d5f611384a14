"""A study whose decisive metrics its data cannot measure is refused before a job runs (`config/study_metrics.py`)."""

from __future__ import annotations

import json

import pytest

from rlhf_lab.config import command_line, study_metrics
from rlhf_lab.core.errors import ConfigError

RECIPE = "+recipe=study/ensemble_lambda"
NARROW = ["reward.terms.bt.penalty_weight=0,0.5", "needs.reward=reward_ensemble", "seed=0", "size=smoke"]


@pytest.fixture
def pairs(tmp_path):
    """Preference pairs of a user: no world says what responses are truly worth."""
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"question {i}", "chosen": f"yes {i}", "rejected": f"no {i}"} for i in range(40)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data=pairs", f"data.path={file}"]


def test_metrics_that_no_job_can_measure_are_named_with_those_that_can(pairs):
    with pytest.raises(ConfigError) as error:
        command_line.check_command([RECIPE, *NARROW, *pairs])
    (problem,) = error.value.problems
    assert problem.startswith(
        "study/ensemble_lambda is decided by a metric that data=pairs cannot measure: gold needs a true reward that is "
    )
    assert "verbose needs" not in problem  # text of people is verbose by rules
    assert "study.metrics=[verbose,kl,proxy,tokens,win_rate,garble] study.predicts=[]" in problem


def test_verbosity_is_unknown_in_a_world_without_it():
    with pytest.raises(ConfigError, match="verbose needs text of people, or a world that recognises verbose responses"):
        command_line.check_command([RECIPE, *NARROW, "data=arithmetic_small"])


def test_what_the_message_says_works(pairs):
    chosen = ["study.metrics=[kl,proxy,tokens,win_rate,garble]", "study.predicts=[]"]
    command = command_line.check_command([RECIPE, *NARROW, *pairs, *chosen])
    assert command.study is not None and command.study.metrics[0] == "kl"
    assert not study_metrics.problems(command.study, command.recipe, command.configs)


def test_gold_is_measured_where_a_reward_model_stands_for_it(pairs):
    gold = [*NARROW, *pairs, "study.metrics=[gold]", "study.predicts=[]"]
    with pytest.raises(ConfigError, match=r"needs\.gold"):
        command_line.check_command([RECIPE, *gold])
    command_line.check_command([RECIPE, *gold, "+needs.gold=owner/model"])
