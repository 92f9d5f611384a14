"""A made corpus: written, read, mixed into a run's training rows, and refused where it does not fit."""

from __future__ import annotations

import json

import pytest
from support import SMALL_WORLD, checked, planned

from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.data.made import HEADER, REJECTED, ROWS, kind_problem, made_identity, read_made, write_made
from rlhf_lab.packs.judging.curation import curate
from rlhf_lab.stages import preflight
from rlhf_lab.training.run import Run

PAIRS = [{"prompt": f"p{i}", "chosen": f"c{i}", "rejected": f"r{i}", "gold_chosen": 1.0} for i in range(4)]


def made(folder, kind: str = "pairs", rows=PAIRS):
    folder.mkdir(exist_ok=True)
    write_made(folder, kind, rows, [{"prompt": "p", "problem": "tie"}] * 2, {"judge": {"kind": "simulated"}})
    return folder


def test_rows_are_read_back_with_what_the_world_knows_of_them(tmp_path):
    folder = made(tmp_path / "a")
    pairs = read_made(folder, "pairs")
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs][:1] == [("p0", "c0", "r0")]
    assert pairs[1].meta == {"source": "corpus.jsonl:2", "gold_chosen": 1.0}
    header = json.loads((folder / HEADER).read_text())
    assert (header["rows"], header["rejected"], header["judge"]) == (4, {"tie": 2}, {"kind": "simulated"})
    assert len((folder / REJECTED).read_text().splitlines()) == 2
    demonstrations = made(tmp_path / "b", "demonstrations", [{"prompt": "p", "completion": "c"}])
    (pair,) = read_made(demonstrations, "demonstrations")
    assert (pair.chosen, pair.rejected) == ("c", "")


def test_curating_keeps_what_sft_leaves_out_by(tmp_path):
    """Rows of the world that are garbled are known as such behind a curated corpus, as in the data themselves."""
    stage = planned("curate", *SMALL_WORLD, "algorithm.against=[]", "data.train_pairs=400")
    run = Run(tmp_path, stage.config, stage.sources())
    curate.build(stage.config.algorithm, run).finish()
    pairs = read_made(tmp_path, "pairs")
    garbled = {pair.chosen for pair in run.corpus.train if pair.meta["garble_chosen"]}
    assert garbled & {pair.chosen for pair in pairs}
    for pair in pairs:
        assert pair.meta["garble_chosen"] == (pair.chosen in garbled)
        assert {"gold_chosen", "gold_rejected", "garble_rejected"} <= set(pair.meta)


def test_a_kind_serves_in_the_place_of_those_before_it(tmp_path):
    assert kind_problem("pairs", "demonstrations") == kind_problem("demonstrations", "prompts") == ""
    assert "its rows are prompts, and pairs are needed" in kind_problem("prompts", "pairs")
    assert "makes no corpus" in kind_problem("", "prompts")
    with pytest.raises(ArtifactError, match="its rows are prompts, and demonstrations are needed"):
        read_made(made(tmp_path / "a", "prompts", [{"prompt": "p"}]), "demonstrations")


def test_rows_that_were_changed_are_refused(tmp_path):
    folder = made(tmp_path / "a")
    (folder / ROWS).write_text((folder / ROWS).read_text().replace("c0", "c9"))
    with pytest.raises(ArtifactError, match=r"is not what corpus\.json describes"):
        read_made(folder, "pairs")
    (folder / HEADER).unlink()
    with pytest.raises(ArtifactError, match=r"there is no corpus\.json"):
        read_made(folder, "pairs")


def test_a_folder_is_identified_by_its_rows_alone(tmp_path):
    first = made(tmp_path / "a")
    identity = made_identity(first)
    (first / "report.html").write_text("later")
    assert made_identity(first) == identity == made_identity(made(tmp_path / "b"))
    assert made_identity(made(tmp_path / "c", rows=PAIRS[:3])) != identity
    assert made_identity(tmp_path) is None


def test_a_run_trains_on_the_mixture_and_is_tested_on_its_own_data(tmp_path):
    folder = made(tmp_path / "a")
    overrides = (*SMALL_WORLD, f"+needs.corpus={folder}", "mixture.rows=8", "mixture.shares={data:1,corpus:1}")
    stage = planned("reward_model", *overrides)
    run = Run(tmp_path, stage.config, stage.sources())
    assert run.needs["corpus"] == str(folder) and run.needs["policy"].endswith("/model")
    assert len(run.corpus.train) == 8
    assert sum(pair.prompt.startswith("p") for pair in run.corpus.train) == 4
    assert run.corpus.test == run.own_corpus.test
    assert len(run.own_corpus.train) == 96


def test_the_mixture_is_in_the_key_only_where_a_corpus_is_named(tmp_path):
    """Keys of other stages are what they were: those of 0.8.0 are written here."""
    assert planned("sft").settings_key == "ec8b67c777ce"
    folder = made(tmp_path / "a")
    named = ("sft", f"+needs.corpus={folder}")
    keys = {planned(*named).settings_key, planned(*named, "mixture.rows=2").settings_key}
    keys.add(planned(*named, "mixture.shares={data:1,corpus:1}").settings_key)
    assert len(keys) == 3
    upstream = planned("cai_reward_model", "mixture.rows=100").needs
    assert upstream["policy"].settings_key == "ec8b67c777ce"
    assert upstream["corpus"].config.mixture.rows == 0


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("sft", "+needs.corpus=self_instruct"), r"stage self_instruct .* its rows are prompts, and demonstrations"),
        (("sft", "+needs.corpus=reward_model"), "makes no corpus of demonstrations"),
        (("dpo", "+needs.corpus=synthetic_sft"), "its rows are demonstrations, and pairs are needed"),
        (("dpo", "needs.policy=synthetic_sft"), "makes data and makes no model"),
        (("synthetic_sft", "+needs.prompts=sft"), "makes no corpus of prompts"),
    ],
)
def test_recipes_of_another_kind_are_refused_before_anything_runs(overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        planned(*overrides)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("sft", "mixture.rows=5"), "mixture is read where needs names a made corpus"),
        (("sft_synthetic", "mixture.shares={human:1}"), "is no source of this run; it has data, corpus"),
        (("rubric_rm", "+needs.corpus=cai_preferences"), r"needs\.corpus is not used by algorithm=rubric_rm"),
        (("rm_report", "+needs.corpus=cai_preferences"), r"needs\.corpus is not used by algorithm=rm_report"),
        (("grpo_math", "+needs.corpus=self_instruct"), "made prompts have no answer"),
    ],
)
def test_settings_that_do_not_go_together(overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        checked(*overrides)


def test_several_corpora_and_every_kind_of_algorithm():
    roles = ("+needs.corpus=cai_preferences", "+needs.corpus_more=cai_preferences")
    config = checked("dpo", *roles, "mixture.shares={data:33,corpus:33,corpus_more:33}", "mixture.rows=90")
    assert config.corpus_roles == ("corpus", "corpus_more")
    for recipe in ("sft", "reward_model", "dpo", "dpo_iterative", "pair_margins"):
        assert planned(recipe, "+needs.corpus=cai_preferences").needs["corpus"].kind == "cai_preferences"
    assert planned("grpo", "+needs.corpus=self_instruct").needs["corpus"].kind == "self_instruct"


def test_a_folder_without_a_corpus_is_found_before_anything_runs(tmp_path):
    stage = planned("sft", f"+needs.corpus={tmp_path}")
    (problem,) = preflight.problems(stage)
    assert problem.startswith(f"needs.corpus={tmp_path}: there is no corpus.json; name the folder of a complete run")
