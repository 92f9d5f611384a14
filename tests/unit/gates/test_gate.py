"""The gate on run directories written by hand: passes, regressions, margins, lack of power, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from support import command_inside

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.evaluations.suite.suite_file import VERSIONS, read_suite
from rlhf_lab.gates import gate, register, scores, table, verdicts
from rlhf_lab.gates.gate import judge

SUITE = """
suite: mine
metrics:
  golden/facts: {margin: 0.05, min: 0.2}
  verbose: {max: 0.5}
"""


def write_run(directory: Path, metadata: list[int], verbose: list[int], *, status: str = "completed") -> Path:
    """A run directory whose policy has these outcomes, one response per prompt."""
    directory.mkdir(parents=True)
    rows = []
    for metric, outcomes in (("golden/facts", metadata), ("verbose", verbose)):
        for index, value in enumerate(outcomes):
            row = {"policy": "dpo", "prompt_id": f"{metric}/{index}", "prompt": f"question {index}", "response": "a"}
            rows.append({**row, metric: value})
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    policies = [
        {"name": "dpo", "metrics": {"win_rate": {"mean": 0.6, "low": 0.5, "high": 0.7, "n": 90, "clusters": 90}}}
    ]
    (directory / "result.json").write_text(json.dumps({"status": status, "policies": policies, "metrics": {}}))
    (directory / "manifest.json").write_text(json.dumps({"recipe": "eval_suite", "key": directory.name, "needs": {}}))
    return directory


@pytest.fixture
def suite(tmp_path) -> str:
    path = tmp_path / "suite.yaml"
    path.write_text(SUITE)
    return str(path)


GOOD = [1, 1, 1, 0] * 50
TERSE = [0] * 19 + [1]


def runs(tmp_path: Path, *sides: tuple[list[int], list[int]]) -> list[str]:
    return [str(write_run(tmp_path / "runs" / f"run{i}", *side)) for i, side in enumerate(sides)]


def compared(tmp_path: Path, suite: str, *sides: tuple[list[int], list[int]]) -> list[verdicts.CheckVerdict]:
    """The verdicts on the second of two runs, compared with the first."""
    first, second = runs(tmp_path, *sides)
    return judge(suite, second, first).verdicts


def store(directory: str, metric: str, **estimate: object) -> None:
    """Write a stored estimate of the run's policy."""
    path = Path(directory) / "result.json"
    result = json.loads(path.read_text())
    result["policies"][0]["metrics"][metric] = estimate
    path.write_text(json.dumps(result))


def test_the_first_run_is_judged_by_bounds_and_registered(tmp_path, suite):
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    decision = judge(suite, first, accept=True)
    assert decision.passed and decision.registered == tmp_path / "accepted" / "mine.json"
    assert decision.verdicts[0].words == "nothing to compare with"
    run, checks = register.last_accepted(decision.registered)
    assert run == first and checks["golden/facts"].estimate.mean == 0.75 and len(checks["golden/facts"].outcomes) == 200
    judge(suite, second, accept=True)  # earlier entries stay, without their outcomes
    entries = register.history(tmp_path / "accepted" / "mine.json")
    assert [entry["run"] for entry in entries] == [first, second]
    assert not entries[0]["checks"]["golden/facts"]["outcomes"] and entries[1]["checks"]["golden/facts"]["outcomes"]


def test_a_significant_fall_is_a_regression_and_is_not_registered(tmp_path, suite):
    # 40 prompts only the first answers, none only the second: a fall of .2 with a standard error of about .028
    first, second = runs(tmp_path, (GOOD, TERSE), ([0] * 53 + GOOD[53:], TERSE))
    judge(suite, first, accept=True)
    decision = judge(suite, second, accept=True)
    metadata, verbose = decision.verdicts
    assert (metadata.state, verbose.state, decision.passed) == ("regression", "pass", False)
    assert metadata.gain.difference.mean == pytest.approx(-0.2) and metadata.p_worse < 0.001
    assert len(register.history(tmp_path / "accepted" / "mine.json")) == 1


def test_more_verbose_replies_are_worse_though_the_number_rises(tmp_path, suite):
    # exact McNemar: 9 prompts only the second, 0 only the first: p = 2/2⁹ = .0039, twice that after Holm
    verbose = compared(tmp_path, suite, (GOOD, [0] * 20), (GOOD, [1] * 9 + [0] * 11))[1]
    assert verbose.state == "regression" and verbose.gain.difference.mean == pytest.approx(-0.45)
    assert verbose.p_worse == pytest.approx(2 * 2 / 2**9)  # with the other check, whose p is 1
    assert "+0.45" in table._difference(verbose)


def test_too_few_prompts_are_undecided_and_said(tmp_path, suite):
    # 2 of 20 prompts differ, one in each direction: no fall is seen, and a margin of .05 is not shown either
    first, second = runs(tmp_path, ([1, 0] + [1] * 18, TERSE), ([0, 1] + [1] * 18, TERSE))
    decision = judge(suite, second, first)
    metadata = decision.verdicts[0]
    assert metadata.state == "undecided" and decision.passed
    assert "prompts would decide (20 were used)" in metadata.words
    assert any("undecided for lack of power: golden/facts" in line for line in table.lines(decision))
    Path(suite).write_text(SUITE + "undecided: fail\n")
    assert not judge(suite, second, first).passed


@pytest.mark.parametrize(
    ("before", "now", "check", "words"),
    [
        # 200 prompts, 2 only the first and 2 only the second: the interval of the difference is 0 ±.02, above −.05
        ((GOOD, TERSE), ([0, 0, 1, 1, *GOOD[4:]], TERSE), 0, "not worse by 0.05"),
        # without a margin, a pass says what would have been found
        ((GOOD, [1, 0] + [0] * 18), (GOOD, [0, 1] + [0] * 18), 1, "would have been detected with 80 % power"),
    ],
)
def test_a_pass_says_what_it_shows(tmp_path, suite, before, now, check, words):
    verdict = compared(tmp_path, suite, before, now)[check]
    assert verdict.state == "pass" and words in verdict.words


def test_a_bound_is_broken_by_the_mean(tmp_path, suite):
    (only,) = runs(tmp_path, ([1] + [0] * 9, TERSE))
    decision = judge(suite, only)
    assert [verdict.state for verdict in decision.verdicts] == ["below bound", "pass"] and not decision.passed
    assert decision.verdicts[0].words == "0.100 is below min 0.2"


def test_estimates_without_rows_are_compared_by_their_intervals(tmp_path, suite):
    Path(suite).write_text("metrics: {win_rate: {min: 0.4}}\n")
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    (wins,) = judge(suite, second, first).verdicts
    assert wins.state == "pass" and wins.words.startswith("no regression found")
    # .6 ±.1 against .4 ±.1: z = .2/(.1·√2/1.96) = 2.77, p = .0056
    store(second, "win_rate", mean=0.4, low=0.3, high=0.5, n=90, clusters=90)
    (wins,) = judge(suite, second, first).verdicts
    assert wins.state == "regression" and wins.p_worse == pytest.approx(0.0056, abs=2e-4)


def test_the_margin_moves_the_test_of_two_intervals(tmp_path, suite):
    """.6 ±.1 accepted, .5 ±.1 now, margin .15: z = (−.1 + .15)/(.1·√2/1.96) = .693, p = erfc(z/√2) that it is worse by
    more than the margin is 1, and that it is not worse by so much .488.
    """
    Path(suite).write_text("metrics: {win_rate: {margin: 0.15}}\n")
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    store(second, "win_rate", mean=0.5, low=0.4, high=0.6, n=90, clusters=90)
    (wins,) = judge(suite, second, first).verdicts
    assert wins.p_worse == 1
    assert wins.p_not_worse == pytest.approx(0.488, abs=1e-3)


def test_exit_statuses_of_the_command(tmp_path, suite):
    first, second, broken = runs(tmp_path, (GOOD, TERSE), ([0] * 53 + GOOD[53:], TERSE), (GOOD, TERSE))
    (Path(broken) / "result.json").write_text(json.dumps({"status": "failed"}))
    status, out = command_inside(tmp_path, "gate", suite, first, "accept=true")
    assert status == 0 and "accepted: accepted/mine.json" in out
    status, out = command_inside(tmp_path, "gate", suite, second)
    assert status == 1 and "failed: golden/facts" in out and "regression" in out
    for words, message in (
        (("nowhere.yaml", first), "there is no such file"),
        ((suite, str(tmp_path / "nothing")), "does not exist"),
        ((suite, broken), "is failed; the gate needs complete runs"),
        ((suite,), "gate needs a suite and a run"),
        ((suite, first, "acept=true"), "did you mean accept"),
    ):
        status, out = command_inside(tmp_path, "gate", *words)
        assert status == 2 and message in " ".join(out.split()), out


def test_a_run_that_lacks_a_metric_says_what_it_has(tmp_path, suite):
    Path(suite).write_text("metrics: {gold: {min: 0}, win_rate: {run: safety}}\n")
    (only,) = runs(tmp_path, (GOOD, TERSE))
    reader = scores.RunReader(only)
    gold, wins = scores.checks_of(read_suite(suite))
    with pytest.raises(DataError, match="has no gold of dpo; it has win_rate"):
        reader.scores(gold)
    with pytest.raises(DataError, match=r"has no needs\.safety"):
        reader.scores(wins)


def test_a_run_that_was_not_asked_the_suite_names_the_one_command(tmp_path, suite):
    (only,) = runs(tmp_path, ([], TERSE))
    status, out = command_inside(tmp_path, "gate", suite, only)
    text = " ".join(out.split())
    assert status == 2 and f"{only} has no golden/facts. Only eval_suite" in text
    assert "needs.policy=MODEL stages.safety_eval.needs.dpo=MODEL" in text  # this run has saved no model


def test_of_many_metrics_the_closest_are_listed(tmp_path, suite):
    Path(suite).write_text("metrics: {win_rat: {min: 0}}\n")
    (only,) = runs(tmp_path, (GOOD, TERSE))
    result = json.loads((Path(only) / "result.json").read_text())
    result["metrics"] = {f"data/rows/{number}": number for number in range(70)}
    (Path(only) / "result.json").write_text(json.dumps(result))
    (check,) = scores.checks_of(read_suite(suite))
    with pytest.raises(DataError, match=r"it has 71 metrics, such as win_rate") as caught:
        scores.RunReader(only).scores(check)
    assert str(caught.value).count("data/rows/") <= scores.SHOWN


def test_a_damaged_register_is_an_error(tmp_path, suite):
    (only,) = runs(tmp_path, (GOOD, TERSE))
    (tmp_path / "accepted").mkdir()
    (tmp_path / "accepted" / "mine.json").write_text("[]")
    with pytest.raises(DataError, match="is not a register of accepted runs"):
        judge(suite, only)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("golden: {a: {check: exact}}", r"golden\.a\.write either path=FILE or prompts=test"),
        ("golden: {a: {prompts: test, check: gold}}", r"at_least is required with check=gold or reward"),
        ("metrics: {a: {mim: 1}}", r"metrics\.a\.mim is not a setting; did you mean min"),
        ("metrics: {a: {min: 2, max: 1}}", r"min=2\.0 is above max=1\.0"),
        ("suite: x", "there is nothing to check"),
        ("- a", "holds a list at its top level; expected the keys suite, golden"),
        ("golden: {a: {path: none.jsonl}}", r"golden\.a\.path: there is no"),
    ],
)
def test_every_mistake_of_a_suite_is_named(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text + "\n")
    with pytest.raises(ConfigError, match=message):
        read_suite(path)


def test_a_metric_of_one_attribute_has_the_direction_of_all(tmp_path, suite):
    Path(suite).write_text("metrics: {mse/helpfulness: {}}\n")
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    store(first, "mse/helpfulness", mean=0.0, low=0.0, high=0.09, n=40, clusters=40)
    store(second, "mse/helpfulness", mean=1.0, low=0.91, high=1.0, n=40, clusters=40)
    assert [verdict.state for verdict in judge(suite, second, first).verdicts] == ["regression"]
    assert [verdict.state for verdict in judge(suite, first, second).verdicts] == ["pass"]


def test_a_compared_metric_without_a_direction_is_refused(tmp_path, suite):
    (only,) = runs(tmp_path, (GOOD, TERSE))
    Path(suite).write_text("metrics: {win_rate: {}, kl: {}}\nharness: {easy: {}}\n")
    with pytest.raises(ConfigError, match=r"set better: higher\|lower") as error:
        judge(suite, only)
    assert "kl: it is unknown whether" in str(error.value) and "easy: it is unknown whether" in str(error.value)
    assert "win_rate" not in str(error.value)
    for written in ("win_rate: {}, kl: {compare: false}", "win_rate: {}, win: {metric: win_rate, better: lower}"):
        Path(suite).write_text(f"metrics: {{{written}}}\n")
        verdicts.require_directions(scores.checks_of(read_suite(suite)))


def test_a_check_without_any_score_fails_and_is_not_registered(tmp_path, suite):
    Path(suite).write_text("suite: mine\nmetrics: {golden/facts: {min: 0.2}}\n")
    (only,) = runs(tmp_path, ([None] * 200, TERSE))
    store(only, "golden/facts", mean=None, low=0, high=1, n=0, clusters=0, unscored=200)
    decision = judge(suite, only, accept=True)
    (metadata,) = decision.verdicts
    assert (metadata.state, metadata.words, decision.passed) == ("unscored", "0 scored, 200 unscored", False)
    assert decision.registered is None and not register.history(tmp_path / "accepted" / "mine.json")


def test_few_scored_replies_are_counted_and_not_taken_for_the_whole_set(tmp_path, suite):
    first, second = runs(tmp_path, ([1] * 200, TERSE), ([1] * 5 + [None] * 195, TERSE))
    store(second, "golden/facts", mean=1, low=0.57, high=1, n=5, clusters=5, unscored=195)
    metadata = judge(suite, second, first).verdicts[0]
    assert metadata.state == "undecided" and "the same" not in metadata.words
    assert "the runs have 5 of 200 prompts in common" in metadata.words and "5 scored, 195 unscored" in metadata.words


def test_sets_that_share_less_than_nine_tenths_are_not_paired(tmp_path, suite):
    # 20 of the accepted run's 200 prompts, all answered; without the others .75 would not be seen
    first, second, third, fourth = runs(
        tmp_path, ([1] * 20 + [1, 0] * 90, TERSE), ([1] * 20, TERSE), ([1] * 200, TERSE), ([1] * 180, TERSE)
    )
    metadata = judge(suite, second, first).verdicts[0]
    assert metadata.gain.test.startswith("z test") and metadata.gain.difference.mean == pytest.approx(0.45)
    assert "the runs have 20 of 200 prompts in common" in metadata.words
    # those that are nearly alike are
    metadata = judge(suite, fourth, third).verdicts[0]
    assert metadata.words == "equal on all 180 prompts; the runs have 180 of 200 prompts in common"


def test_a_run_compared_with_another_than_the_last_is_not_accepted(tmp_path, suite):
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    with pytest.raises(ConfigError, match="leave out the other run"):
        judge(suite, second, first, accept=True)
    assert not (tmp_path / "accepted").exists()


def test_a_run_that_was_accepted_meanwhile_is_not_passed_over(tmp_path, suite, monkeypatch):
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    decide = gate.decide

    def decide_slowly(*arguments):
        monkeypatch.setattr(gate, "decide", decide)
        judge(suite, first, accept=True)  # another process
        return decide(*arguments)

    monkeypatch.setattr(gate, "decide", decide_slowly)
    with pytest.raises(DataError, match="is the last accepted"):
        judge(suite, second, accept=True)
    assert [entry["run"] for entry in register.history(tmp_path / "accepted" / "mine.json")] == [first]


def test_the_register_is_locked_from_reading_to_writing(tmp_path, suite, monkeypatch):
    (only,) = runs(tmp_path, (GOOD, TERSE))
    lock = FileLock(tmp_path / "accepted" / "mine.lock", is_singleton=False)
    model_copies = []

    def write(path, values):
        with pytest.raises(Timeout):
            lock.acquire(timeout=0)
        model_copies.append(path)

    monkeypatch.setattr(register, "write_json", write)
    judge(suite, only, accept=True)
    assert model_copies == [tmp_path / "accepted" / "mine.json"]


def with_needs(directory: str, *, key: str = "k", **needs: str) -> str:
    """Write which folders a run started from."""
    path = Path(directory) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["needs"] = {role: {"recipe": role, "key": key, "dir": source} for role, source in needs.items()}
    path.write_text(json.dumps(manifest))
    return directory


def names_policies(directory: str, *names: str) -> str:
    """Let a run have evaluated these policies, with win rates of .1, .2, …"""
    rates = [{"mean": i / 10, "low": 0, "high": 1, "n": 90, "clusters": 90} for i in range(1, len(names) + 1)]
    policies = [{"name": name, "metrics": {"win_rate": rate}} for name, rate in zip(names, rates, strict=True)]
    (Path(directory) / "evaluation.jsonl").unlink()
    (Path(directory) / "result.json").write_text(json.dumps({"status": "completed", "policies": policies}))
    return directory


@pytest.mark.parametrize(("policy", "rate"), [("sft-1", 0.1), ("dpo-1", 0.2), ("ppo-1", 0.3)])
def test_a_metric_of_another_run_is_of_the_gated_policy(tmp_path, suite, policy, rate):
    gated, safety = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    with_needs(gated, policy=policy, safety=safety)
    with_needs(names_policies(safety, "sft (reference)", "dpo", "ppo"), reference="sft-1", dpo="dpo-1", ppo="ppo-1")
    Path(suite).write_text("metrics: {win_rate: {run: safety}}\n")
    assert judge(suite, gated).verdicts[0].value.mean == rate
    # the run that made the policy is about it
    with_needs(names_policies(gated, "sft", "dpo"), policy=gated)
    Path(suite).write_text("metrics: {win_rate: {run: policy}}\n")
    assert judge(suite, gated).verdicts[0].value.mean == 0.2


def test_a_run_that_evaluated_another_policy_is_refused(tmp_path, suite):
    gated, safety = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    with_needs(gated, policy="grpo-1", safety=safety)
    with_needs(names_policies(safety, "sft (reference)", "dpo"), reference="sft-1", dpo="dpo-1")
    Path(suite).write_text("metrics: {win_rate: {run: safety}}\n")
    with pytest.raises(DataError, match=r"safety did not evaluate needs\.policy; .* evaluated sft \(reference\), dpo"):
        judge(suite, gated)
    with_needs(gated, policy="sft-1", safety=safety)
    Path(suite).write_text("metrics: {win_rate: {run: safety, policy: dpo}}\n")
    with pytest.raises(DataError, match=r"evaluated sft \(reference\) for needs\.policy, not dpo"):
        judge(suite, gated)


def test_a_run_that_was_asked_another_version_of_a_golden_set_is_refused(tmp_path, suite):
    first, second = runs(tmp_path, (GOOD, TERSE), (GOOD, TERSE))
    metadata = tmp_path / "facts.jsonl"
    metadata.write_text('{"prompt": "question 0", "answer": "a"}\n')
    Path(suite).write_text("suite: mine\ngolden:\n  facts: {path: facts.jsonl}\n")
    with pytest.raises(DataError, match=r"used another version of golden\.facts; run eval_suite again"):
        judge(suite, first)
    requested = json.dumps(read_suite(suite).versions())
    (Path(first) / VERSIONS).write_text(requested)
    assert judge(suite, first, accept=True).passed
    Path(suite).write_text("suite: mine\ngolden:\n  facts: {path: facts.jsonl, min: 0.9}\n")
    assert not judge(suite, first).passed  # a bound is not part of the request
    metadata.write_text('{"prompt": "question 0", "answer": "b"}\n')
    with pytest.raises(DataError, match=r"used another version of golden\.facts"):
        judge(suite, first)
    Path(suite).write_text("suite: mine\ngolden:\n  facts: {path: facts.jsonl}\n")
    (Path(second) / VERSIONS).write_text(json.dumps(read_suite(suite).versions()))
    assert "the accepted run used another version of golden.facts" in judge(suite, second).verdicts[0].words


def test_numbers_by_another_reward_are_not_compared(tmp_path, suite):
    """A golden set with check=reward passes or fails by the reward of the run, and so does the proxy."""
    Path(suite).write_text(
        "suite: mine\n"
        "golden:\n  facts: {prompts: test, check: reward, at_least: 0.5}\n"
        "metrics:\n  verbose: {max: 0.5}\n"
    )
    version = json.dumps(read_suite(suite).versions())
    needs = {"first": "a", "second": "a", "third": "b"}
    for name, key in needs.items():
        # all but five of the first prompts get worse
        facts = GOOD if name == "first" else [0] * 53 + GOOD[53:]
        directory = write_run(tmp_path / "runs" / name, facts, TERSE)
        (directory / VERSIONS).write_text(version)
        (directory / "config.yaml").write_text("reward: {terms: {bt: {kind: bt}}, monitor: {z: 2.5}}\n")
        with_needs(str(directory), key=key, reward=f"/models/{key}")
    first, second, third = (str(tmp_path / "runs" / name) for name in needs)
    assert judge(suite, second, first).verdicts[0].state == "regression"
    decision = judge(suite, third, first)
    facts, verbose = decision.verdicts
    assert facts.state == "undecided" and "scored by another reward" in facts.words and facts.gain is None
    assert verbose.state == "pass" and verbose.gain is not None
    assert any("undecided because the scales differ: facts," in line for line in table.lines(decision))
    # the register keeps the scale for runs that are deleted
    judge(suite, first, accept=True)
    assert judge(suite, third).verdicts[0].state == "undecided"
    assert judge(suite, second).verdicts[0].state == "regression"


def test_numbers_from_another_reference_policy_are_not_compared(tmp_path, suite):
    """.1 against one SFT policy says nothing about .2 against another one."""
    Path(suite).write_text("metrics: {win_rate: {}}\n")
    first, second, third = runs(tmp_path, *[(GOOD, TERSE)] * 3)
    for directory, key in ((first, "a"), (second, "a"), (third, "b")):
        with_needs(directory, key=key, policy=f"/models/{key}")
    assert judge(suite, second, first).verdicts[0].gain is not None
    (wins,) = judge(suite, third, first).verdicts
    assert wins.state == "undecided" and wins.gain is None and "another reference policy" in wins.words
