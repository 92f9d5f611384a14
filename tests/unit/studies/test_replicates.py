"""What the intervals of a study speak for: seeds with data of their own, seeds on shared prompts, outcomes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic_runs import write_study

from rlhf_lab import compose
from rlhf_lab.analysis.crossed import crossed_difference, crossed_mean
from rlhf_lab.analysis.statistics import clustered_mean, paired_over_seeds
from rlhf_lab.errors import ConfigError
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.gains import prompt_means
from rlhf_lab.studies.replicates import level_difference, level_mean, run_errors
from rlhf_lab.studies.replication import UNKNOWN, Replication, replication
from rlhf_lab.studies.rundir import read_run


def jobs(*overrides: str) -> list:
    return compose.check_command(["+recipe=dpo", "seed=0,1,2", *overrides]).configs


def test_a_seed_draws_its_own_data_unless_one_is_kept():
    configs = jobs()
    assert [(c.data.seed, c.data.test_seed, c.data.facts_seed) for c in configs] == [(s, s, s) for s in range(3)]
    assert replication(configs) == Replication("redrawn")
    kept = jobs("data.test_seed=7")
    assert [(c.data.seed, c.data.test_seed, c.data.facts_seed) for c in kept] == [(s, 7, s) for s in range(3)]
    assert replication(kept) == Replication("kept", ("data.test_seed=7",)) and replication(kept).shares_prompts
    assert "test prompts are the same for all 3 seeds (0, 1, 2)" in replication(kept).sentence(range(3))
    whole = replication(jobs("data.seed=0"))
    assert whole.kept == ("data.facts_seed=0", "data.seed=0", "data.test_seed=0")
    assert not replication(jobs("data.facts_seed=0")).shares_prompts
    assert replication(configs[:1]) == Replication("redrawn")  # one seed: nothing could be kept


def test_stages_upstream_read_the_same_data_as_the_run():
    from rlhf_lab.artifacts import plan

    checked = jobs("data.test_seed=7")[2]
    stages = list(plan(checked, "dpo").upstream())
    assert len(stages) > 1 and all(stage.config.data == checked.data for stage in stages)


def test_given_data_have_no_seed(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    given = jobs("data=pairs", f"data.path={tmp_path / 'rows.jsonl'}")
    assert replication(given).data == "given" and "not for other training data" in replication(given).sentence(range(3))
    with pytest.raises(ConfigError, match=r"data\.seed is not a setting"):
        jobs("data=pairs", f"data.path={tmp_path / 'rows.jsonl'}", "data.seed=1")


def test_negative_seeds_are_refused():
    with pytest.raises(ConfigError, match=r"test_seed=-1 is negative"):
        jobs("data.test_seed=-1")


@pytest.fixture
def shared(tmp_path):
    """A study whose seeds are tested on the same prompts."""
    folder = write_study(tmp_path, seeds=3)
    plan = json.loads((folder / "study.json").read_text())
    plan["replication"] = Replication("given").to_dict()
    (folder / "study.json").write_text(json.dumps(plan))
    return folder


def by_prompt(folder, indices, metric):
    tables = []
    for index in indices:
        rows = read_run(folder / f"jobs/{index}/run").evaluation
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
    gap, plain = level_difference(study, "kl", "mixed"), paired_over_seeds(frame["kl"][3:6], frame["kl"][:3])
    assert gap.standard_error == pytest.approx(np.sqrt(plain.standard_error**2 + 2 * 0.5**2), rel=1e-4)
    assert gap.freedom == pytest.approx(2 * gap.standard_error**4 / plain.standard_error**4, rel=1e-4)
    assert gap.difference.high > plain.difference.mean and "shared prompts" in gap.test


def test_outcomes_of_runs_are_rates(tmp_path):
    study = read_study(write_study(tmp_path, seeds=3))
    frame = study.frame.assign(staleness=[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    study = replace(study, frame=frame)
    assert np.isnan(run_errors(frame, "staleness")).all()
    always, never = (level_mean(study, "staleness", level) for level in ("current", "mixed"))
    assert (always.mean, always.high, never.mean, never.low) == (1.0, 1.0, 0.0, 0.0)
    assert always.low < 0.6 and never.high > 0.4  # three of three say little
    gap = level_difference(study, "staleness", "mixed")
    assert gap is not None and gap.difference.mean == -1.0 and not gap.distinguishable


def test_a_study_written_before_seeds_had_data_says_so(make_study):
    study = read_study(make_study(seeds=2))
    assert study.replication == UNKNOWN and "training alone" in study.replication.sentence(range(2))
