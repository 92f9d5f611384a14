"""A made corpus: written, read, mixed into a run's training rows, and refused where it does not fit."""

from __future__ import annotations

import pytest
from support import SMALL_WORLD, checked, planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.generated import read_generated, write_generated
from rlhf_lab.packs.judging.curation import curate
from rlhf_lab.stages import preflight
from rlhf_lab.training.run import Run

PAIRS = [{"prompt": f"p{i}", "chosen": f"c{i}", "rejected": f"r{i}", "gold_chosen": 1.0} for i in range(4)]


def made(directory, kind: str = "pairs", rows=PAIRS):
    directory.mkdir(exist_ok=True)
    write_generated(directory, kind, rows, [{"prompt": "p", "problem": "tie"}] * 2, {"judge": {"kind": "simulated"}})
    return directory


def test_curating_keeps_what_sft_leaves_out_by(tmp_path):
    """Rows of the world that are garbled are known as such behind a curated corpus, as in the data themselves."""
    stage = planned("curate", *SMALL_WORLD, "algorithm.against=[]", "data.train_pairs=400")
    run = Run(tmp_path, stage.config, stage.sources())
    curate.build(stage.config.algorithm, run).finish()
    pairs = read_generated(tmp_path, "pairs")
    garbled = {pair.chosen for pair in run.corpus.train if pair.meta["garble_chosen"]}
    assert garbled & {pair.chosen for pair in pairs}
    for pair in pairs:
        assert pair.meta["garble_chosen"] == (pair.chosen in garbled)
        assert {"gold_chosen", "gold_rejected", "garble_rejected"} <= set(pair.meta)


def test_the_mixture_is_in_the_key_only_where_a_corpus_is_named(tmp_path):
    """Keys of other stages are what they were: those of 0.8.0 are written here."""
    assert planned("sft").settings_key == "ec8b67c777ce"
    directory = made(tmp_path / "a")
    named = ("sft", f"+needs.corpus={directory}")
    keys = {planned(*named).settings_key, planned(*named, "mixture.rows=2").settings_key}
    keys.add(planned(*named, "mixture.shares={data:1,corpus:1}").settings_key)
    assert len(keys) == 3
    upstream = planned("cai_reward_model", "mixture.rows=100").needs
    assert upstream["policy"].settings_key == "ec8b67c777ce"
    assert upstream["corpus"].config.mixture.rows == 0


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("sft", "+needs.corpus=self_instruct"), r"stage self_instruct .* its rows are prompts, but demonstrations"),
        (("sft", "+needs.corpus=reward_model"), "generates no corpus of demonstrations"),
        (("dpo", "+needs.corpus=synthetic_sft"), "its rows are demonstrations, but pairs are needed"),
        (("dpo", "needs.policy=synthetic_sft"), "creates data and saves no model"),
        (("synthetic_sft", "+needs.prompts=sft"), "generates no corpus of prompts"),
    ],
)
def test_recipes_of_another_kind_are_refused_before_anything_runs(overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        planned(*overrides)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("sft", "mixture.rows=5"), "mixture is only used if needs names a synthetic corpus"),
        (("sft_synthetic", "mixture.shares={human:1}"), "is no source of this run; known: corpus, data"),
        (("rubric_rm", "+needs.corpus=cai_preferences"), r"needs\.corpus is not used by algorithm=rubric_rm"),
        (("rm_report", "+needs.corpus=cai_preferences"), r"needs\.corpus is not used by algorithm=rm_report"),
        (("grpo_math", "+needs.corpus=self_instruct"), "synthetic prompts have no answer"),
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
    assert problem.startswith(f"needs.corpus={tmp_path}: there is no corpus.json; name the directory of a finished run")


def test_the_vocabulary_is_in_the_key_only_where_it_is_set():
    """The key of 0.10 for a stage that names a corpus, and another one with a vocabulary of all rows."""
    simple = planned("sft_synthetic")
    assert simple.settings_key == planned("sft_synthetic", "mixture.vocabulary=data").settings_key
    assert simple.settings_key != planned("sft_synthetic", "mixture.vocabulary=all").settings_key
    assert simple.settings_key == "d291b99962f4"
