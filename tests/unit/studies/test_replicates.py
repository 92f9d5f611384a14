"""Populations of the intervals of a study: seeds with their own data, seeds on shared prompts, outcomes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support import paired_over_seeds
from synthetic_runs import edit, edited, write_study

from rlhf_lab.config import command_line
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.mini_hh import build
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.results.gains import prompt_means
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages.artifacts import plan
from rlhf_lab.statistics.crossed import crossed_difference, crossed_mean
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.replicates import level_difference, level_mean, run_errors
from rlhf_lab.studies.replication import Replication, replication
from rlhf_lab.studies.table import build_sections


def jobs(*overrides: str) -> list:
    return command_line.check_command(["+recipe=dpo", "seed=0,1,2", *overrides]).configs


def replicated(*overrides: str) -> Replication:
    command = command_line.check_command(["+recipe=dpo", *overrides])
    return replication([plan(checked, "dpo") for checked in command.configs], command.jobs)


def test_a_seed_draws_its_own_data_unless_one_is_kept():
    assert [(c.data.seed, c.data.test_seed, c.data.facts_seed) for c in jobs()] == [(s, s, s) for s in range(3)]
    assert replicated("seed=0,1,2") == Replication("redrawn")
    kept = jobs("data.facts_seed=7")
    assert [(c.data.seed, c.data.test_seed, c.data.facts_seed) for c in kept] == [(s, s, 7) for s in range(3)]
    metadata = replicated("seed=0,1,2", "data.facts_seed=7")
    assert metadata == Replication("kept", ("data.facts_seed=7",)) and not metadata.shares_prompts
    assert "Parts of the data (facts) are the same for all 3 seeds (0, 1, 2)" in metadata.sentence(range(3))
    full = replicated("seed=0,1,2", "data.seed=0")
    assert set(full.kept) == {"data.facts_seed=0", "data.seed=0", "data.test_seed=0"} and full.shares_prompts
    assert replicated("seed=1") == Replication("redrawn")  # one seed: nothing could be kept


def test_test_prompts_are_kept_only_in_the_same_world():
    assert replicated("seed=0,1,2", "data.test_seed=7") == Replication("redrawn")
    same = replicated("seed=0,1,2", "data.test_seed=7", "data.facts_seed=7")
    assert same.kept == ("data.facts_seed=7", "data.test_seed=7") and same.shares_prompts
    first, second = (
        build(MiniHH(domains=2, train_pairs=1, test_pairs=40, facts_seed=7, test_seed=7, seed=seed)).test
        for seed in (0, 1)
    )
    assert [pair.prompt for pair in first] == [pair.prompt for pair in second]


def test_what_else_is_the_same_for_several_seeds_is_named(tmp_path):
    grid = replicated("seed=0,1", "data.seed=0,1")
    assert grid.data == "kept" and "data.seed" in grid.kept  # a factor of its own: no value to name
    assert replicated("data.seed=0,1").data == "redrawn"  # of one training seed: nothing is repeated
    upstream = replicated("seed=0,1", "stages.sft.seed=0")
    assert upstream.data == "redrawn" and upstream.kept == ("stages.sft.seed=0",)
    assert upstream.sentence([0, 1]).endswith("The same for several seeds: stages.sft.seed=0.")
    assert replicated("seed=0,1", "needs.policy=some/model").kept == ("needs.policy=some/model",)
    assert "stages.reward_model.data.seed=0" in replicated("seed=0,1", "stages.reward_model.data.seed=0").kept


def test_stages_upstream_read_the_same_data_as_the_run():
    checked = jobs("data.test_seed=7")[2]
    stages = list(plan(checked, "dpo").upstream())
    assert len(stages) > 1 and all(stage.config.data == checked.data for stage in stages)


def test_given_data_have_no_seed(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    given = replicated("seed=0,1", "data=pairs", f"data.path={tmp_path / 'rows.jsonl'}")
    assert given.data == "given" and "and not other training data" in given.sentence(range(2))
    with pytest.raises(ConfigError, match=r"data\.seed is not a setting"):
        jobs("data=pairs", f"data.path={tmp_path / 'rows.jsonl'}", "data.seed=1")


def test_negative_seeds_are_refused():
    with pytest.raises(ConfigError, match=r"test_seed=-1 must be at least 0"):
        jobs("data.test_seed=-1")
    with pytest.raises(ConfigError, match=r"seed=-1 is negative"):
        command_line.check_command(["+recipe=dpo", "seed=-1"])


@pytest.fixture
def shared(tmp_path):
    """A study whose seeds are tested on the same prompts."""
    directory = write_study(tmp_path, seeds=3)
    edit(directory / "study.json", replication=Replication("given").to_dict())
    return directory


def by_prompt(directory, indices, metric):
    tables = []
    for index in indices:
        rows = read_run(directory / f"jobs/{index}/run").evaluation
        tables.append(prompt_means(rows[rows["policy"] == "iteration 3"], [metric])[metric].to_numpy())
    return np.array(tables)


def test_shared_prompts_are_crossed_with_seeds(shared):
    study = read_study(shared)
    current, mixed = by_prompt(shared, (0, 1, 2), "gold"), by_prompt(shared, (3, 4, 5), "gold")
    assert level_mean(study, "gold", "current") == crossed_mean(current)
    assert level_difference(study, "gold", "mixed") == crossed_difference(mixed, current)
    alone = replace(study, replication=Replication("redrawn"), prompts={})
    values = study.completed.set_index("index")["gold"]
    assert level_difference(alone, "gold", "mixed") == paired_over_seeds(values[[3, 4, 5]], values[[0, 1, 2]])
    wide, narrow = level_mean(study, "gold", "current"), level_mean(alone, "gold", "current")
    assert wide.mean == pytest.approx(narrow.mean)


def test_a_metric_without_values_by_prompt_adds_the_error_of_its_runs(shared):
    # Seeds alone: ȳ ± t_2·s/√3. The prompts that all runs share add w², the mean square of the runs' standard errors.
    study = read_study(shared)
    frame = study.frame.assign(**{"kl/low": study.frame["kl"] - 0.98, "kl/high": study.frame["kl"] + 0.98})
    study = replace(study, frame=frame, prompts={})  # each run knows its value to .98/1.96 = .5
    seeds_alone = clustered_mean(frame["kl"][:3], range(3))
    found = level_mean(study, "kl", "current")
    assert found.high - found.mean == pytest.approx(np.hypot(seeds_alone.high - seeds_alone.mean, 1.96 * 0.5), rel=1e-3)
    gap, simple = level_difference(study, "kl", "mixed"), paired_over_seeds(frame["kl"][3:6], frame["kl"][:3])
    assert gap.standard_error == pytest.approx(np.sqrt(simple.standard_error**2 + 2 * 0.5**2), rel=1e-4)
    assert gap.freedom == pytest.approx(2 * gap.standard_error**4 / simple.standard_error**4, rel=1e-4)
    assert gap.difference.high > simple.difference.mean and "shared prompts" in gap.test


def test_outcomes_of_runs_are_rates(tmp_path):
    study = read_study(write_study(tmp_path, seeds=3))
    outcomes = {"gold_fell": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0], "gold_fell/n": 0}
    frame = study.frame.assign(**outcomes, **{"gold_fell/low": -np.inf, "gold_fell/high": np.inf})
    study = replace(study, frame=frame)
    assert np.isnan(run_errors(frame, "gold_fell")).all()
    always, never = (level_mean(study, "gold_fell", level) for level in ("current", "mixed"))
    assert (always.mean, always.high, never.mean, never.low) == (1.0, 1.0, 0.0, 0.0)
    assert always.low < 0.6 and never.high > 0.4  # three of three say little
    gap = level_difference(study, "gold_fell", "mixed")
    assert gap is not None and gap.difference.mean == gap.difference.low == -1.0 and gap.p_value > 0.05
    # A number that happens to be 1 in every run is no outcome.
    staleness = replace(study, frame=frame.assign(staleness=1.0))
    assert level_mean(staleness, "staleness", "current").high == pytest.approx(1.0, abs=0.01)


def test_jobs_without_a_seed_are_not_repetitions(make_study):
    directory = make_study(seeds=3)
    with edited(directory / "study.json") as stored:
        for job in stored["jobs"]:
            job["overrides"]["algorithm.lr"] = job["overrides"].pop("seed")
    study = read_study(directory)
    assert not level_mean(study, "gold", "mixed").bounded
    assert np.isnan(level_difference(study, "gold", "mixed").p_value)
    assert "One seed cannot tell" in write_conclusion(study, build_sections(study)).caveat


def test_a_sweep_over_seeds_alone_is_one_level(make_study):
    directory = make_study(seeds=4)
    stored = json.loads((directory / "study.json").read_text())
    jobs = [job for job in stored["jobs"] if job["overrides"]["algorithm.buffer"] == "mixed"]
    for job in jobs:
        del job["overrides"]["algorithm.buffer"]
    (directory / "study.json").write_text(json.dumps({**stored, "jobs": jobs, "compare": "seed", "baseline": 0}))
    study = read_study(directory)
    (row,) = build_sections(study)[0].rows
    assert (row.level, row.jobs, row.mean.clusters, row.versus) == ("all seeds", 4, 4, None)
    conclusion = write_conclusion(study, build_sections(study)).sentence
    assert conclusion.startswith("Gold reward is ") and conclusion.endswith(" with all seeds.")


def test_runs_on_other_prompts_are_not_crossed(shared):
    study = read_study(shared)
    fewer = {index: table.iloc[: 4 if index == 3 else None] for index, table in study.prompts.items()}
    found = level_difference(replace(study, prompts=fewer), "gold", "mixed")
    assert found is not None and "crossed" not in found.test and found.difference.clusters == 3
