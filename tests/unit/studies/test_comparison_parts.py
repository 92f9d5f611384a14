"""The parts of a comparison of two runs: what is on another scale, what is remarked, what was only stored."""

from __future__ import annotations

import json

import pytest
import yaml
from support import paired_over_seeds
from synthetic_runs import edit
from test_compare import responses, write_run

from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.comparison.compare import find_sides
from rlhf_lab.reports.comparison.notes import run_notes
from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.comparison.scales import mismatches, origin_changes, refuse_two_worlds, user_code_changes
from rlhf_lab.reports.comparison.view import distinguishable, indistinguishable
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.scales import scale_identity

REWARD, POLICY = ({role: {"key": "one"}} for role in ("reward", "policy"))


def other(need: dict) -> dict:
    return {role: {"key": "another"} for role in need}


def test_another_reward_or_another_start_puts_metrics_on_another_scale(tmp_path):
    runs = {
        name: read_run(write_run(tmp_path / name, responses(0.0, 1.0), needs=needs))
        for name, needs in {"a": REWARD, "b": other(REWARD), "c": POLICY, "d": other(POLICY)}.items()
    }
    (reward,) = mismatches(runs["a"], runs["b"])
    assert reward.covers("proxy") and reward.covers("reward/bt") and not reward.covers("rewarding")
    assert not reward.covers("kl") and not reward.covers("gold")
    (start,) = mismatches(runs["c"], runs["d"])
    assert start.covers("kl") and start.covers("win_rate") and not start.covers("gold")
    assert not mismatches(runs["a"], runs["a"]) and not mismatches(runs["a"], runs["c"])


def test_a_soup_is_another_reference_than_the_start(tmp_path):
    """KL and win rates of a run with needs.soup refer to the soup, those of its baseline to the start policy."""
    needs = {"plain": POLICY, "same": POLICY, "soup": {**POLICY, "soup": {"key": "second"}}, "other": other(POLICY)}
    runs = {name: read_run(write_run(tmp_path / name, responses(0.0, 1.0), needs=each)) for name, each in needs.items()}
    (reference,) = mismatches(runs["plain"], runs["soup"])
    assert reference.covers("kl") and reference.covers("win_rate") and not reference.covers("gold")
    assert not mismatches(runs["plain"], runs["same"]) and not mismatches(runs["soup"], runs["soup"])
    for metric in ("kl", "win_rate"):
        plain, same, soup, elsewhere = (scale_identity(run, metric) for run in runs.values())
        assert plain == same and len({plain, soup, elsewhere}) == 3
    assert len({scale_identity(run, "gold") for run in runs.values()}) == 1


def test_another_model_of_any_term_puts_proxies_on_another_scale(tmp_path):
    def graded(name, key):
        config = "reward: {terms: {rubric: {kind: rubric}, gone: {kind: of_a_plug_in}}}\n"
        rows = responses(0.0, 1.0, metric="proxy")
        return read_run(write_run(tmp_path / name, rows, config=config, needs={"rubric": {"key": key}}))

    a, same, other_model = graded("a", "one"), graded("same", "one"), graded("other", "another")
    assert not mismatches(a, same)
    (reward,) = mismatches(a, other_model)
    # without gold, the reward decides wins
    assert reward.covers("proxy") and reward.covers("win_rate") and not reward.covers("kl")
    assert scale_identity(a, "proxy") == scale_identity(same, "proxy") != scale_identity(other_model, "proxy")
    assert scale_identity(a, "win_rate") != scale_identity(other_model, "win_rate") and not scale_identity(a, "tokens")


def test_monitor_and_audit_of_a_reward_change_no_scale(tmp_path):
    def observed(name, config):
        return read_run(write_run(tmp_path / name, responses(0.0, 1.0, metric="proxy"), config=f"reward: {config}\n"))

    plain = observed("plain", "{temperature: 1.0, monitor: {z: 2.5}, audit: {labels_per_iteration: 0}}")
    audited = observed("audited", "{temperature: 1.0, monitor: {z: 3.0}, audit: {labels_per_iteration: 16}}")
    assert not mismatches(plain, audited)
    assert mismatches(plain, observed("divided", "{temperature: 2.0}"))


def test_an_edited_reward_function_puts_proxies_on_another_scale(tmp_path):
    """The setting stays `my_rewards.py:brevity`; the digests of its definitions are in code.json."""
    lab = {"rlhf_lab/rewards/graph.py:GraphReward": "1"}

    def scored(name, term, definitions):
        config = f"reward: {{terms: {{{term}: {{kind: {term}}}}}}}\n"
        directory = write_run(tmp_path / name, responses(0.0, 1.0), config=config)
        if definitions is not None:
            (directory / "code.json").write_text(json.dumps({"definitions": definitions}))
        return read_run(directory)

    a = scored("a", "callable", {**lab, "my_rewards.py:brevity": "1"})
    edited = scored("edited", "callable", {**lab, "my_rewards.py:brevity": "2", "my_rewards.py:WEIGHT": "3"})
    (reward,) = mismatches(a, edited)
    assert reward.covers("proxy") and not reward.covers("kl")
    assert scale_identity(a, "proxy") != scale_identity(edited, "proxy")
    changes = [("code.my_rewards.py:brevity", "1", "2"), ("code.my_rewards.py:WEIGHT", "–", "3")]
    assert origin_changes(a, edited)[-2:] == changes
    # The lab's own code, a run without code.json, and a user's agent beside a built-in reward change no reward.
    same = scored("same", "callable", {"rlhf_lab/rewards/graph.py:GraphReward": "2", "my_rewards.py:brevity": "1"})
    assert not mismatches(a, same) and not user_code_changes(a, same)
    assert scale_identity(a, "proxy") == scale_identity(same, "proxy")
    assert not mismatches(a, scored("unknown", "callable", None))
    agents = [scored(f"agent {digest}", "length", {"my_agent.py:Agent": digest}) for digest in "12"]
    assert not mismatches(*agents) and user_code_changes(*agents) == [("code.my_agent.py:Agent", "1", "2")]


def test_another_gold_puts_gold_and_win_rate_on_another_scale(tmp_path):
    configs = {"a": "needs: {gold: models/a}\n", "b": "needs: {gold: models/b}\n", "world": "seed: 0\n"}
    rows = responses(0.0, 1.0)
    runs = {name: read_run(write_run(tmp_path / name, rows, config=config)) for name, config in configs.items()}
    (between_models,) = mismatches(runs["a"], runs["b"])
    assert between_models.covers("gold") and between_models.covers("win_rate") and not between_models.covers("kl")
    assert mismatches(runs["a"], runs["world"]) and not mismatches(runs["a"], runs["a"])
    unknown = read_run(write_run(tmp_path / "unknown", responses(0.0, 1.0, metric="proxy"), config=configs["b"]))
    assert not mismatches(runs["a"], unknown)
    same_name = [{"gold": {"key": key}} for key in ("one", "another")]
    stages = [read_run(write_run(tmp_path / str(i), rows, needs=needs)) for i, needs in enumerate(same_name)]
    assert mismatches(*stages)


def test_sides_that_differ_and_sides_that_do_not_are_worded():
    clear = paired_over_seeds([1.0, 1.1, 0.9], [0.0, 0.0, 0.0])
    assert distinguishable("`B`", clear, 0.02).startswith("It is higher with `B` (+1.00")
    unclear = paired_over_seeds([1.0, -0.8, 0.9], [0.0, 0.0, 0.0])
    text = indistinguishable("`B`", "`A`", unclear, "prompt")
    assert text.startswith("Not distinguishable from `A`: `B` (+0.4 ") and ", detectable from " in text
    alone = indistinguishable("`B`", "`A`", paired_over_seeds([1.0], [0.0]), "prompt")
    assert alone.startswith("Not tested against `A`: `B`. One shared prompt cannot tell")


def test_remarks_name_what_is_not_alike(tmp_path):
    a = write_run(tmp_path / "a", responses(0.0, 1.0), config="rollout: {temperature: 1.0}\n", status="failed")
    b = write_run(tmp_path / "b", responses(0.0, 1.0, text="other"), config="rollout: {temperature: 0.7}\n")
    notes = run_notes(*find_sides(a, b))
    assert len(notes) == 3 and notes[0].startswith("A is failed: its partial results are compared")
    twin = write_run(tmp_path / "twin", responses(2.0, 3.0, text="other"), config="rollout: {temperature: 0.7}\n")
    assert not run_notes(*find_sides(twin, b))


def of_world(directory, name, **data):
    """The same run, measured on other data."""
    edit(directory / "manifest.json", data={"name": name})
    config = directory / "config.yaml"
    config.write_text(config.read_text() + yaml.safe_dump({"data": {"kind": name, **data}}))
    return directory


def test_truths_of_two_worlds_are_not_compared(make_run):
    """Gold is +2.5 of one world's points against another's: neither a test nor a remark makes it one measure."""
    a, b = make_run("a"), of_world(make_run("b", lift=2.5), "speech")
    message = r"A \(.*a\) is measured on data=mini_hh, B \(.*b\) on data=speech, so their gold"
    with pytest.raises(DataError, match=message):
        compare(a, b)
    refuse_two_worlds(*(side.run for side in find_sides(a, make_run("c", seed=7))))  # the same world is not refused


def test_environments_and_mixes_are_worlds_by_what_they_hold(make_run):
    one = of_world(make_run("one"), "environment", environment="mine.py:Relay")
    other = of_world(make_run("other"), "environment", environment="mine.py:Chess")
    assert read_run(one).world == "environment mine.py:Relay"
    with pytest.raises(DataError, match=r"data=environment mine.py:Relay, B .* on data=environment mine.py:Chess"):
        compare(one, other)
    sources = {"x": {"kind": "verifiable"}, "y": {"kind": "gsm8k"}}
    assert read_run(of_world(make_run("mixed"), "mix", sources=sources)).world == "mix of gsm8k, verifiable"


def test_one_reward_model_as_gold_measures_the_same_on_any_data(make_run):
    folders = [of_world(make_run(name), name) for name in ("hh_rlhf", "pairs")]
    for directory in folders:
        config = directory / "config.yaml"
        config.write_text(config.read_text() + "needs: {gold: outputs/runs/gold}\n")
    refuse_two_worlds(*(read_run(directory) for directory in folders))
