"""Saved responses under other weightings: by hand, against the estimator of best-of-n, and without a model."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from support import checked

from rlhf_lab.config import root
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.evaluations.rescoring import read_responses, rescore
from rlhf_lab.evaluations.weightings import weightings
from rlhf_lab.rewards.combine import SCALES_FILE
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.rewards.rules.settings import Length, Programmatic
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.statistics.best_of_n import choice_probabilities, chosen_win_rate, rank_correlation

BT, RULE = [3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]
GOLD = [-1.0, 4.0, 2.0, 0.0]


def write(directory: Path, prompts: int = 2, responses: int = 4, **columns) -> Path:
    """A run directory with saved responses: the same four to each prompt unless columns say otherwise."""
    directory.mkdir(parents=True, exist_ok=True)
    values = {"reward/bt": BT, "reward/programmatic": RULE, "reward/conciseness": RULE, "gold": GOLD, **columns}
    rows = [
        {"policy": "SFT", "prompt_id": p, "sample_id": i, "response": f"reply {i}", "tokens": 10 + i, "proxy": 0.0}
        | {name: None if math.isnan(v[i % len(v)]) else v[i % len(v)] for name, v in values.items()}
        for p in range(prompts)
        for i in range(responses)
    ]
    rows.append({**rows[0], "policy": "best of 2"})
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = checked("composite_rollouts", "reward.terms.bt.transform=none")
    (directory / "config.yaml").write_text(yaml.safe_dump(root.to_values(job)))
    return directory


def graph(**weights: float) -> RewardGraph:
    return RewardGraph(terms={"bt": BradleyTerry(), "programmatic": Programmatic()}, weights=weights)


def test_the_choice_of_each_weighting_by_hand(tmp_path):
    """Best of all four: bt takes response 0 (gold −1); 1·bt + 2·rule gives 3, 4, 3, 2 and takes response 1 (gold 4)."""
    responses = read_responses(write(tmp_path))
    sft, first, second = rescore(responses, {"a": graph(bt=1.0), "b": graph(bt=1.0, programmatic=2.0)}, 4)
    assert (sft.name, sft.metrics["gold"].mean, sft.metrics["reward/bt"].mean) == ("SFT", 1.25, 1.5)
    found = [(r.metrics["gold"].mean, r.metrics["reward/bt"].mean, r.metrics["tokens"].mean) for r in (first, second)]
    assert found == [(-1, 3, 10), (4, 2, 11)]
    assert first.metrics["same_choice"].mean == 1 and second.metrics["same_choice"].mean == 0
    assert [row["response"] for row in second.rows] == ["reply 1"] * 2
    assert "proxy" not in second.metrics and "win_rate" not in second.metrics  # other units; no opponent is left
    assert first.metrics["gold"].clusters == 2


def test_order_is_compared_prompt_by_prompt(tmp_path):
    """Ranks of bt 4 3 2 1, of gold 1 4 3 2: Σd² = 9+1+1+1 = 12, ρ = 1 − 6·12/(4·15) = −.2."""
    _, first, second = rescore(read_responses(write(tmp_path)), {"a": graph(bt=1.0), "b": graph(bt=-1.0)}, 2)
    assert first.metrics["rank_gold"].mean == pytest.approx(-0.2)
    assert (first.metrics["rank_first"].mean, second.metrics["rank_first"].mean) == pytest.approx((1, -1))
    constant = rank_correlation([1.0, 1.0, 1.0, 2.0], [1.0, 2.0, 1.0, 2.0], [np.arange(2), np.arange(2, 4)])
    assert (constant.mean, constant.n, constant.unscored) == (pytest.approx(1), 1, 1)
    assert rank_correlation([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [np.arange(3)]).mean == 1


def test_an_unscored_reply_has_no_probability_to_be_chosen():
    score = [0, 3, 1, np.nan, 3, 2, 0, 2, 2, 1]
    probability = choice_probabilities(score, 5)
    assert probability.sum() == pytest.approx(1) and probability[3] == 0
    assert np.isnan(choice_probabilities(score, 10)).all() and np.isnan(choice_probabilities([np.nan], 1)).all()


def test_the_win_rate_is_against_an_independent_reply():
    """Best of 2 by gold itself against a third: 2/3. The other two of the same three would lose to it always."""
    gold = np.array([1.0, 2.0, 3.0])
    assert chosen_win_rate(gold, gold, 2) == pytest.approx(2 / 3)
    assert chosen_win_rate(np.zeros(3), gold, 1) == pytest.approx(0.5)
    assert math.isnan(chosen_win_rate(gold, gold, 3))


def test_an_unscored_reply_is_not_chosen(tmp_path):
    directory = write(tmp_path, **{"reward/bt": [math.nan, 2.0, 1.0, 0.0]})
    _, found = rescore(read_responses(directory), {"a": graph(bt=1.0)}, 3)
    assert found.metrics["gold"].mean == 4 and found.metrics["proxy"].mean == 2
    assert found.metrics["reward/bt"].mean == 2


def test_a_term_that_was_not_saved_says_which_are(tmp_path):
    responses = read_responses(write(tmp_path))
    with pytest.raises(ArtifactError, match=r"no column reward/length \(saved terms: bt, conciseness, programmatic\)"):
        responses.score(RewardGraph(terms={"length": Length(), "bt": BradleyTerry()}))
    assert responses.score(RewardGraph(terms={"length": Length(weight=0.0), "bt": BradleyTerry()}))[0] == 3


def test_a_corpus_scale_comes_from_the_run(tmp_path):
    settings = RewardGraph(terms={"bt": BradleyTerry(standardise="corpus")})
    directory = write(tmp_path)
    with pytest.raises(ArtifactError, match="no scale of bt"):
        read_responses(directory).score(settings)
    (directory / SCALES_FILE).write_text('{"bt": {"mean": 1.0, "sd": 2.0, "n": 5}}')
    assert read_responses(directory).score(settings)[:4].tolist() == [1, 0.5, 0, -0.5]


def test_a_folder_or_policy_that_is_not_there(tmp_path):
    with pytest.raises(ArtifactError, match=r"no evaluation\.jsonl"):
        read_responses(tmp_path)
    with pytest.raises(ArtifactError, match="no policy 'PPO'; use one of those it has: SFT, best of 2"):
        read_responses(write(tmp_path), "PPO")
    with pytest.raises(ArtifactError, match="best of 5 needs 5 responses"):
        rescore(read_responses(tmp_path), {"a": graph(bt=1.0)}, 5)


def test_weightings_are_typed_one_by_one(tmp_path):
    directory = write(tmp_path)
    typed = ["reward.weights={bt:1}", "reward.weights={bt:.5,conciseness:.5}", "reward.terms.bt={transform:sigmoid}"]
    graphs, settings = weightings(directory, [*typed, "algorithm.choose_from=3"])
    assert list(graphs) == ["1 bt", "0.5 bt + 0.5 conciseness"] and settings.choose_from == 3
    assert all(graph.terms["bt"].transform == "sigmoid" for graph in graphs.values())
    assert list(weightings(directory, [])[0]) == ["as saved"]


def test_a_changed_reward_is_not_the_saved_one(tmp_path):
    """The saved reward is bt: 3, 2, 1, 0. A negative weight turns the ranks around."""
    directory = write(tmp_path, proxy=BT)
    graphs, _ = weightings(directory, ["reward.temperature=2", "reward.terms.bt.transform=sigmoid"])
    assert list(graphs) == ["as saved, but temperature=2, terms.bt.transform=sigmoid"]
    reversed_graph = RewardGraph(terms={"bt": BradleyTerry(weight=-1.0)})
    _, found = rescore(read_responses(directory), {"reversed": reversed_graph}, 2)
    assert found.metrics["rank_first"].mean == pytest.approx(-1)
    _, same = rescore(read_responses(directory), {"same": RewardGraph(terms={"bt": BradleyTerry()})}, 2)
    assert same.metrics["rank_first"].mean == pytest.approx(1)


def test_all_mistakes_in_weightings_are_told_at_once(tmp_path):
    wrong = ["reward.weights={btt:1}", "reward.weights={bt:0}", "reward.terms.bt.weigth=1", "model=small"]
    wrong += ["reward.temperature.x=1"]
    with pytest.raises(ConfigError) as found:
        weightings(write(tmp_path), wrong)
    text = "\n".join(found.value.problems)
    assert "btt is not one of the terms" in text and "model is not a setting of rescore" in text
    assert "did you mean weight" in text
    assert "reward.temperature.x is not a setting: reward.temperature has no settings" in text
    with pytest.raises(ConfigError, match="separate arguments"):
        weightings(tmp_path, ["reward.weights={bt:1},{bt:2}"])


@pytest.mark.slow
def test_500_replies_under_20_weightings_load_no_model(tmp_path):
    """The work is arithmetic and one file, opened once for all weightings: torch is not even imported."""
    directory = write(tmp_path, prompts=50, responses=10)
    typed = [f"reward.weights={{bt:{k / 20},programmatic:{1 - k / 20}}}" for k in range(20)]
    code = (
        "import sys, runpy, atexit\n"
        "opened = []\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and str(arguments[0]).endswith('evaluation.jsonl'):\n"
        "        opened.append(arguments[0])\n"
        "sys.addaudithook(hook)\n"
        "atexit.register(lambda: print('heavy', {'torch', 'transformers'} & set(sys.modules) or '', len(opened)))\n"
        f"sys.argv = ['rlhf_lab', 'rescore', {str(directory)!r}, *{typed!r}]\n"
        "runpy.run_module('rlhf_lab', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "heavy  1" in done.stdout and "0.45 bt + 0.55 programmatic" in done.stdout
