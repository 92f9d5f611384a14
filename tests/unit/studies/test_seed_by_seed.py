"""Studies that stop when decided: planned seeds, looks of earlier runs, limits, and jobs that are not needed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hydra._internal.core_plugins import basic_sweeper
from synthetic_runs import edit, edited, write_study

from rlhf_lab.config import command_line
from rlhf_lab.config.study_levels import planned_seeds
from rlhf_lab.config.study_settings import Prediction, StudySettings
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.studies.claims import CONFIRMED, REFUTED
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.look_log import NOT_NEEDED, Look, LookLog
from rlhf_lab.studies.registration import Registration, register
from rlhf_lab.studies.replication import Replication
from rlhf_lab.studies.verdict import verdicts
from rlhf_lab.sweeps import seed_by_seed, sweep

CLAIM = {"metric": "gold", "level": "mixed", "direction": "higher", "versus": None, "margin": 0.0, "by": None}
SETTINGS = StudySettings(
    sweep={"algorithm.buffer": ["current", "mixed", "stale"], "seed": [0]},
    compare="algorithm.buffer",
    baseline="current",
    metrics=["gold"],
    predicts=[Prediction("gold", "mixed", "higher")],
    until="decided",
)


def test_all_levels_of_a_seed_come_before_the_next_seed(monkeypatch):
    for name in (sweep.PROCESSES, sweep.SWEEP):  # set by `_hydra_arguments`, and removed after this test
        monkeypatch.setenv(name, "1")
    words = ["+recipe=study/kl_control", "seed=0,1,2,3,4"]
    command = command_line.check_command([*words, "study.until=decided", "study.max_seeds=7"])
    assert [job["seed"] for job in command.jobs] == [seed for seed in range(7) for _ in range(3)]
    assert len({job["algorithm.kl_controller"] for job in command.jobs[:3]}) == 3
    assert command.study is not None
    arguments = sweep._hydra_arguments(command, command.study, sweep.study_dir(command), None)
    assert "hydra.sweeper.max_batch_size=3" in arguments
    assert "+seed=0,1,2,3,4,5,6" in arguments or "seed=0,1,2,3,4,5,6" in arguments
    # Limits and the number of processes do not change which study it is; the rule by which it stops does.
    limits = ("study.max_minutes=5", "study.processes=1")
    more = command_line.check_command([*words, "study.until=decided", *limits])
    assert sweep.study_dir(more) == sweep.study_dir(command)
    assert len(more.jobs) == 3 * 8  # the recipe's own max_seeds
    fixed = command_line.check_command([*words, "study.until=null"])
    assert [job["seed"] for job in fixed.jobs[:5]] == [0, 1, 2, 3, 4]  # as before: seeds vary fastest
    assert sweep.study_dir(fixed) != sweep.study_dir(command)


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["+recipe=study/mitigations", "study.arm=audit", "seed=0"], 1),  # as docs/running.md says
        (["+recipe=study/kl_control", "study.predicts=[]"], 9),
        # the claims compare `fixed` and `adaptive` with `none`, which alone is left
        (["+recipe=study/kl_control", "study.size=quick", "study.quick={algorithm.kl_controller:[none]}"], 3),
    ],
    ids=["one level", "no claims", "no levels of the claims"],
)
def test_what_has_nothing_to_decide_runs_its_list_of_seeds(words, jobs):
    command = command_line.check_command(words)
    assert len(command.jobs) == jobs
    assert command.study is not None and command.study.until is None


def test_sweeps_of_other_values_have_other_directories():
    words = ["+recipe=sft", "algorithm.lr=0.003,0.0003", "seed=0,1"]
    directory = sweep.study_dir(command_line.check_command(words))
    others = (["algorithm.batch_size=4,8"], ["algorithm.lr=0.003,0.0001"])
    directories = {sweep.study_dir(command_line.check_command(["+recipe=sft", *other, "seed=0,1"])) for other in others}
    assert len({directory, *directories}) == 3
    assert (
        sweep.study_dir(command_line.check_command([*words[:2], "seed=0,1,2"])) == directory
    )  # more seeds continue it
    whole = sweep.study_dir(command_line.check_command(["+recipe=study/kl_control"]))
    assert whole.name == "kl_control"
    levels = ["+recipe=study/kl_control", "algorithm.kl_controller=none,fixed"]
    assert sweep.study_dir(command_line.check_command(levels)) != whole


def test_a_value_that_is_swept_twice_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.lr=0\.001,0\.001,0\.0001 has 0\.001 more than once"):
        command_line.check_command(["+recipe=sft", "algorithm.lr=0.001,1e-3,0.0001"])
    with pytest.raises(ConfigError, match="seed=0,1,1 has 1 more than once"):
        command_line.check_command(["+recipe=study/kl_control", "seed=0,1,1"])


def test_seeds_are_those_of_the_sweep_and_then_the_next_integers():
    words = ["+recipe=study/kl_control", "study.until=decided", "study.max_seeds=4"]
    command = command_line.check_command([*words, "seed=100,105"])
    assert [job["seed"] for job in command.jobs[::3]] == planned_seeds([100, 105], 4) == [100, 105, 106, 107]
    with pytest.raises(ConfigError, match=r"has 5 seeds, more than study\.max_seeds=4"):
        command_line.check_command([*words, "seed=0,1,2,3,4"])
    smoke = command_line.check_command([*words, "size=smoke"])
    assert smoke.study is not None and smoke.study.until is None  # one seed decides nothing


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="until=decided needs claims; add predicts"):
        command_line.check_command(
            ["+recipe=sft", "algorithm.lr=1e-4,1e-3", "study.until=decided", "study.metrics=[gold]"]
        )
    with pytest.raises(ConfigError, match="direction=same has no published effect"):
        Prediction("gold", "mixed", "same", margin=0.1, published=0.3)
    words = ["+recipe=study/kl_control", "study.until=decided"]
    claims = "study.predicts=[{metric:%s,level:fixed,direction:lower,published:%s}]"
    for metric, published, problem in (
        ("gold", "0.5", "it is a difference, which must be below 0"),
        ("kl", "1.5", "it is a ratio, which must be above 0 and below 1"),
        ("kl", "-18", "it is a ratio, which must be above 0 and below 1"),
    ):
        with pytest.raises(ConfigError, match=problem):
            command_line.check_command([*words, claims % (metric, published)])
    assert command_line.check_command([*words, claims % ("kl", "0.3")]).jobs
    with pytest.raises(ConfigError, match="test prompts of their own for every seed"):
        seed_by_seed.check_prompts(Replication("given"))
    seed_by_seed.check_prompts(Replication("redrawn"))


def edit_plan(directory, **values) -> None:
    edit(directory / "study.json", **values)


@pytest.fixture
def directory(tmp_path):
    """A study of three buffers and four seeds, all run, whose only claim compares two of the buffers."""
    directory = write_study(tmp_path / "studies", seeds=4, lift=3.0)
    with edited(directory / "study.json") as plan:
        plan |= {"predicts": [CLAIM], "by": "", "looks": LookLog((0, 1, 2, 3)).to_dict()}
        plan["jobs"] = [job | {"seed": job["overrides"]["seed"]} for job in plan["jobs"]]
    return directory


def plan_of(directory) -> dict:
    return json.loads((directory / "study.json").read_text())


def test_a_study_stops_when_decided(directory, capsys):
    progress = seed_by_seed.StudyProgress(directory, SETTINGS)
    assert not progress.finish_seed(2)
    out = capsys.readouterr().out
    assert "2 of at most 4 seeds done, " in out and "; the first look is after 3 seeds" in out
    assert progress.finish_seed(3)
    log = LookLog.from_dict(plan_of(directory)["looks"])
    assert log.looks == (Look(3, {0: CONFIRMED}, ()),)
    assert log.stopped == "every claim is decided"
    out = capsys.readouterr().out
    assert "3 of at most 4 seeds done" in out and "0 of 1 claims open; every claim is decided" in out
    assert "confirmed     gold reward is higher with buffer mixed than with buffer current: +" in out
    assert read_study(directory).log == log


def test_claims_about_absent_levels_decide_nothing(directory, capsys):
    edit_plan(directory, predicts=[CLAIM | {"level": "absent"}])
    assert seed_by_seed.StudyProgress(directory, SETTINGS).finish_seed(3)
    assert plan_of(directory)["looks"]["stopped"] == "no claim is about the levels of this sweep"


def test_the_page_of_an_interrupted_seed_has_the_numbers_of_the_last_look(directory):
    progress = seed_by_seed.StudyProgress(directory, SETTINGS)
    edit_plan(directory, predicts=[CLAIM | {"level": "stale"}])
    assert not progress.finish_seed(3)
    study = read_study(directory)
    looked_at = study.frame[study.frame["seed"] < 3]
    assert verdicts(study) == verdicts(replace(study, frame=looked_at))


def test_limits_stop_a_study(directory, capsys):
    edit_plan(directory, predicts=[CLAIM | {"level": "stale"}])
    progress = seed_by_seed.StudyProgress(directory, replace(SETTINGS, max_minutes=600.0))
    assert not progress.finish_seed(3)
    assert "1 of 1 claims open; about 1 more seed, " in capsys.readouterr().out
    progress.longest = 36_001.0  # another seed would probably end after the limit
    assert progress.finish_seed(3)
    assert plan_of(directory)["looks"]["stopped"] == "the limit of 600 minutes is reached"
    assert seed_by_seed.StudyProgress(directory, SETTINGS).finish_seed(4)
    looks = plan_of(directory)["looks"]
    assert looks["stopped"] == "the limit of 4 seeds is reached"
    assert [(look["seeds"], look["levels"]) for look in looks["looks"]] == [
        (3, ["stale", "current"]),
        (4, ["stale", "current"]),
    ]


def test_a_time_limit_before_the_first_look_is_said(directory, capsys):
    progress = seed_by_seed.StudyProgress(directory, replace(SETTINGS, max_minutes=600.0), longest=36_001.0)
    assert progress.finish_seed(1)
    assert "; the limit of 600 minutes is reached" in capsys.readouterr().out
    assert plan_of(directory)["looks"]["stopped"] == "the limit of 600 minutes is reached"
    assert (
        "not looked at yet; the limit of 600 minutes is reached." in write_conclusion(read_study(directory), []).caveat
    )


def test_the_sweeper_stops_between_two_seeds(directory):
    original = basic_sweeper.BasicSweeper.is_done
    sweeper = basic_sweeper.BasicSweeper(max_batch_size=3)
    sweeper.overrides = [[["seed=0"]]] * 4
    with seed_by_seed.stopping_when_decided(directory, SETTINGS):
        answers = []
        for sweeper.batch_index in range(4):
            answers.append(sweeper.is_done())
    assert answers == [False, False, False, True]
    assert basic_sweeper.BasicSweeper.is_done is original


def test_jobs_of_decided_levels_are_not_needed(directory):
    log = LookLog((0, 1, 2, 3), (Look(3, {}, ("mixed", "current")),))
    edit_plan(directory, looks=log.to_dict())
    needed = [sweep._is_needed(directory / "jobs" / str(index)) for index in range(12)]
    assert needed == [True] * 11 + [False]  # `stale` of seed 3, the last of four seeds
    (directory / "jobs" / "11" / "job.json").write_text(json.dumps({"status": NOT_NEEDED, "run": None}))
    study = read_study(directory)
    assert 11 not in set(study.frame["index"]) and not len(study.incomplete)


def test_seeds_that_never_ran_are_not_missing(directory):
    for index in (2, 3, 6, 7, 10, 11):  # seeds 2 and 3
        (directory / "jobs" / str(index) / "job.json").unlink()
    study = read_study(directory)
    assert sorted(set(study.frame["seed"])) == [0, 1]
    assert not len(study.incomplete)


def test_the_same_claims_continue_with_the_same_seeds_first(directory):
    looks = (Look(3, {0: CONFIRMED, 1: REFUTED}, ()),)
    stale = CLAIM | {"level": "stale"}
    plan = plan_of(directory) | {"predicts": [CLAIM, stale], "until": "decided"}
    plan["registration"] = register(directory, "buffers", plan).to_dict()
    plan["looks"] = LookLog((0, 1, 2, 3), looks, stopped="the limit of 4 seeds is reached").to_dict()
    (directory / "study.json").write_text(json.dumps(plan))

    def continued(claims: list[dict], seeds: list[int]) -> LookLog:
        registration = register(directory, "buffers", plan | {"predicts": claims})
        return sweep.continued_log(directory, registration, seeds)

    # More seeds: the looks stay, and the study is open again.
    assert continued([CLAIM, stale], [0, 1, 2, 3, 4]) == LookLog((0, 1, 2, 3, 4), looks)
    with pytest.raises(ConfigError, match=r"looked at with seeds 0, 1, 2, .* with study\.max_seeds=N"):
        continued([CLAIM, stale], [5, 0, 1])
    # Decisions follow their claims if the list changes.
    changed = CLAIM | {"direction": "lower"}
    added = (Look(3, {0: REFUTED}, ("mixed", "current")),)  # the new claim gets seeds, though the other is decided
    assert continued([stale, changed], [0, 1, 2, 3]).looks == added
    assert continued([changed], [0, 1, 2, 3]) == LookLog((0, 1, 2, 3))
    assert sweep.continued_log(directory / "elsewhere", Registration(), [0, 1]) == LookLog((0, 1))


def test_recipes_run_their_list_of_seeds_on_data_from_files(tmp_path):
    """All seeds share the test prompts of a file, so no test stays valid under looking."""
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "Why?", "chosen": "So.", "rejected": "No."}\n' * 3)
    claim = "{metric:kl,level:fixed,direction:lower}"
    words = ["+recipe=study/kl_control", "data=pairs", f"data.path={file}", "study.metrics=[kl]"]
    words.append(f"study.predicts=[{claim}]")
    command = command_line.check_command(words)
    assert command.study is not None and command.study.until is None
    assert sorted({job["seed"] for job in command.jobs}) == [100, 101, 102]
    assert "data=pairs has the same test prompts for every seed" in command.note
    typed = command_line.check_command([*words, "study.until=decided"])
    assert typed.study is not None and typed.study.until == "decided" and not typed.note  # refused when it runs
    assert not command_line.check_command(["+recipe=study/kl_control"]).note
