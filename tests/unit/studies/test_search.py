"""Search over settings: the written ranges, the choice of values, resuming, and the comparison on fresh seeds."""

from __future__ import annotations

import json
import math
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run

from rlhf_lab.config import command_line, search_space
from rlhf_lab.config.search_space import SearchChoices, SearchGoal, SearchInterval
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, MissingDependency
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.study.claims import search as search_section
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.replicates import level_difference
from rlhf_lab.studies.search_trials import SearchTrial, SearchTrials, read_trials, selection_note, stopped_after
from rlhf_lab.sweeps import search
from rlhf_lab.sweeps.job_record import record_job
from rlhf_lab.sweeps.optuna_trials import OptunaTrials

GOLD = SearchGoal("gold", "higher")
SPACE = "study.search={algorithm.beta: log 0.01..1.0, algorithm.loss: [sigmoid, ipo]}"
COMMAND = ("+recipe=dpo", "data=mini_hh_small", SPACE, "study.goal={metric: gold, direction: higher}")
OPTIMUM = 0.1


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("log 0.01..0.5", SearchInterval(0.01, 0.5, log=True)),
        ("1e-5..1e-3", SearchInterval(1e-5, 1e-3)),
        ("-1.0..1", SearchInterval(-1.0, 1.0)),
        ("1..8", SearchInterval(1, 8)),
        ([8, "a", None], SearchChoices((8, "a", None))),
    ],
)
def test_ranges(written, expected):
    assert search_space.problem_of("algorithm.beta", written) is None
    assert search_space.dimension(written) == expected


def test_searched_numbers_have_three_digits_and_stay_in_their_range():
    assert SearchInterval(0.01, 0.5).rounded(0.073149) == 0.0731
    assert SearchInterval(0.12345, 0.5).rounded(0.1234501) == 0.12345  # 0.123 would be below the range
    # the ends are 101 times the width, so two more digits: 990 values, where three digits gave eleven
    assert SearchInterval(0.99, 0.9999).rounded(0.9951234) == 0.99512
    assert SearchInterval(1, 8).whole and not SearchInterval(1.0, 8.0).whole


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        (
            "study.search={algorithm.beta: 0.1}",
            "search: algorithm.beta=0.1 is no range; write LOW..HIGH, log LOW..HIGH",
        ),
        ("study.search={algorithm.beta: log 0..1}", "algorithm.beta=log 0..1: a logarithmic range starts above 0"),
        ("study.search={algorithm.beta: 0.5..0.1}", "its first number must be below the second"),
        ("study.search={algorithm.beta: [0.1]}", "needs two different values or more"),
        ("study.search={seed: 0..9}", "a seed is no setting to choose"),
        ("study.search={algorithm.betta: 0.1..0.2}", "algorithm.betta is not a setting"),
        ("study.search={algorithm.beta: -1.0..0.2}", "algorithm.beta=-1.0 must be above 0"),
        ("study.search={algorithm.loss: [sigmoid, sigmod]}", "algorithm.loss=sigmod is not one of"),
        ("study.goal=null", "search needs a goal, such as study.goal="),
        ("algorithm.lr=1e-4,1e-3", "algorithm.lr: with study.search the search chooses the values"),
        ("study.compare=algorithm.beta", "search: compare describe the levels of a sweep"),
        ("study.confirm_seeds=1", "confirm_seeds=1 must be at least 2"),
        ("study.goal={metric: accuracy, direction: up}", "direction=up is not one of higher, lower"),
    ],
)
def test_wrong_settings_of_a_search_name_the_key(word, problem):
    with pytest.raises(ConfigError) as error:
        command_line.check_command([*COMMAND, word])
    assert any(problem in line for line in error.value.problems), error.value.problems


def test_the_smoke_size_has_few_trials_unless_they_are_typed():
    short = command_line.check_command([*COMMAND, "size=smoke"]).study
    typed = command_line.check_command([*COMMAND, "size=smoke", "study.trials=7"]).study
    assert short is not None and typed is not None
    assert (short.trials, short.confirm_seeds, typed.trials) == (3, 2, 7)


def score(values: dict[str, Any]) -> float:
    """Score with its maximum at x = 0.1, in decades."""
    return -abs(math.log10(values["x"] / OPTIMUM))


def finished(trials: OptunaTrials, count: int) -> list[dict[str, Any]]:
    for _ in range(count):
        trial = trials.next()
        value = score(trial.values)
        trials.finish(SearchTrial(trial.index, trial.values, "completed", value, "run"))
    return [dict(trial.values) for trial in trials.trials()]


def test_later_trials_are_closer_to_the_optimum_and_a_resumed_search_is_the_same(tmp_path):
    space = {"x": SearchInterval(1e-4, 10.0, log=True), "unused": SearchChoices(([1], {"a": 2}))}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    values = finished(OptunaTrials(tmp_path / "one", space, GOLD, 0), 20)
    distances = [-score(chosen) for chosen in values]
    assert sum(distances[10:]) / 10 < sum(distances[:5]) / 5  # the first five are random
    assert values[0]["unused"] in ([1], {"a": 2})
    finished(OptunaTrials(tmp_path / "two", space, GOLD, 0), 7)
    stopped = OptunaTrials(tmp_path / "two", space, GOLD, 0).next()  # it is interrupted
    assert OptunaTrials(tmp_path / "two", space, GOLD, 0).next() == stopped
    assert finished(OptunaTrials(tmp_path / "two", space, GOLD, 0), 13) == values
    with pytest.raises(ConfigError, match="has trials with other ranges or another goal"):
        OptunaTrials(tmp_path / "one", {"x": SearchInterval(0.0, 1.0)}, GOLD, 0)


def test_without_optuna_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingDependency, match=r"study.search needs a library .* pip install 'rlhf_lab\[search\]'"):
        OptunaTrials(tmp_path, {}, GOLD, 0)


def test_the_search_stops_without_an_improvement():
    scores = (0.2, 0.5, 0.4, None, 0.5)
    trials = tuple(
        SearchTrial(index, {}, "failed" if value is None else "completed", value) for index, value in enumerate(scores)
    )
    found = SearchTrials(GOLD, ("gold",), 9, trials)
    assert found.best == trials[1]  # the first of equal ones
    assert found.trials_since_best() == 3
    assert stopped_after(found, 4).stopped == ""
    assert stopped_after(found, 3).stopped == "stopped after 3 trials without an improvement"
    assert "The best of 4 trials was selected" in selection_note(found)
    assert "gold reward is too high on average" in selection_note(found)


class Builder:
    """Builds synthetic runs in which β = 0.1 has the most gold, and is stopped at one of them."""

    def __init__(self, stop_at: int = -1):
        self.built: list[float] = []
        self.stop_at = stop_at

    def __call__(self, stage: Stage) -> tuple[int, dict[str, Any]]:
        if len(self.built) == self.stop_at:
            return 130, {"status": "interrupted", "error": "stopped after step 3 of 9"}
        beta = getattr(stage.config.algorithm, "beta")  # noqa: B009 (the base class has no β)
        self.built.append(beta)
        if beta > 0.9:
            return 0, {"status": "failed", "error": "the loss is not finite"}
        if not stage.directory.exists():
            lift = 1 - abs(math.log10(beta / OPTIMUM))
            write_run(stage.directory.parent, stage.directory.name, lift=lift, seed=stage.config.seed, prompts=8)
        return 0, {"status": "completed"}


def run(tmp_path: Path, builder: Builder, *more: str) -> tuple[Path, str]:
    command = command_line.check_command([*COMMAND, f"outputs={tmp_path}", "study.metrics=[kl]", *more])
    with console.capture() as printed, suppress(KeyboardInterrupt):
        assert search.run(command, None, builder) == 0
    return search.study_dir(command), printed.get()


def test_an_interrupted_search_continues_and_ends_with_a_comparison_on_fresh_seeds(tmp_path):
    first = Builder(stop_at=4)
    directory, _ = run(tmp_path, first, "study.trials=6")
    interrupted = read_trials(directory)
    assert interrupted is not None and [trial.status for trial in interrupted.trials][-1] == "running"
    second = Builder()
    _, printed = run(tmp_path, second, "study.trials=6")
    found = read_trials(directory)
    assert found is not None and found.best is not None and len(found.trials) == 6
    assert len(first.built) + len(second.built) == 6 + 2 * 3  # no trial is run twice; 3 seeds of two levels
    best = min(found.trials, key=lambda trial: abs(math.log10(trial.values["algorithm.beta"] / OPTIMUM)))
    assert found.best == best
    # The comparison is on the seeds after that of the trials.
    study = read_study(directory)
    assert study.factors == ("settings", "seed") and sorted(set(study.frame["seed"])) == [1, 2, 3]
    comparison = level_difference(study, "gold", "best")
    assert comparison is not None
    default_beta = 0.3
    lead = abs(math.log10(default_beta / OPTIMUM)) - abs(math.log10(best.values["algorithm.beta"] / OPTIMUM))
    assert comparison.difference.mean == pytest.approx(lead, abs=1e-6)  # the noise of a seed is the same on both sides
    command = found.command
    assert f"algorithm.beta={best.values['algorithm.beta']}" in command and "study" not in command
    for expected in ("trial 6 of 6", "too high on average", command, "the best trial"):
        assert expected in printed.replace("\n", " ") or expected in printed
    # The page has the trials, also without the journal and its library.
    (directory / "optuna.journal").unlink()
    section = search_section(StudyResults(study))
    assert section is not None and section.table is not None
    assert [row[-1] for row in section.table.rows].count("best") == 1
    page = write_report(directory).read_text()
    for text in (page, (directory / "table.md").read_text()):
        assert "Trials of the search" in text and "6 of at most 6 trials" in text


def test_failed_trials_are_rows_and_more_trials_continue_the_search(tmp_path):
    words = ("study.search={algorithm.beta: 0.05..1.0, algorithm.lr: [1e-4, 2e-4]}", "study.confirm_seeds=2")
    directory, printed = run(tmp_path, Builder(), *words, "study.trials=4")
    found = read_trials(directory)
    assert found is not None
    failed = [trial for trial in found.trials if trial.values["algorithm.beta"] > 0.9]
    assert failed and all(trial.status == "failed" and trial.score is None for trial in failed)
    assert "the loss is not finite" in printed
    more = Builder()
    continued, _ = run(tmp_path, more, *words, "study.trials=5")
    assert continued == directory and len(more.built) == 1 + 4
    plan = json.loads((directory / "study.json").read_text())
    assert [job["overrides"] for job in plan["jobs"][:2]] == [{"settings": "default", "seed": seed} for seed in (1, 2)]


def test_a_goal_that_no_result_has_stops_the_search_after_the_first_trial(tmp_path):
    """Every further trial would train for nothing."""
    builder = Builder()
    with pytest.raises(ConfigError, match=r"the result of the first trial, .* has no god; did you mean gold\?"):
        run(tmp_path, builder, "study.goal={metric: god, direction: higher}", "study.trials=6")
    assert len(builder.built) == 2  # the first trial fails, because its β is above 0.9


def test_the_command_of_the_best_trial_of_a_recipe_is_one_run():
    command = command_line.check_command(["+recipe=study/search_dpo", "seed=4"])
    assert command.study is not None
    running = search.SettingsSearch(command, command.study, None, Path("unused"), Builder())
    line = running.command_line({"algorithm.beta": 0.05})
    words = line.split("rlhf_lab ")[1].split() if "rlhf_lab " in line else line.split()[1:]
    single = command_line.check_command(words)
    assert single.study is None and len(single.jobs) == 1
    assert getattr(single.configs[0].algorithm, "beta") == 0.05 and single.configs[0].seed == 4  # noqa: B009


@pytest.mark.parametrize(
    ("raised", "status", "error"),
    [
        (ConfigError("the file is missing"), "failed", "the file is missing"),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), "interrupted", "stopped"),
    ],
)
def test_every_end_of_a_job_is_recorded(tmp_path, raised, status, error):
    def work(record: dict[str, Any]) -> None:
        record["run"] = "outputs/runs/dpo-1"
        raise raised

    record = record_job(tmp_path, work)
    assert (record["status"], record["error"], record["run"]) == (status, error, "outputs/runs/dpo-1")
    assert json.loads((tmp_path / "job.json").read_text()) == record
    assert (tmp_path / "error.txt").exists() == isinstance(raised, ZeroDivisionError)
