"""Every recipe runs to its end; a second run reuses what is there; studies survive failing jobs.

`make test` runs one recipe of each family, smaller than `size=smoke`. `make test-all` runs the others: studies at
that size too, and all others with `size=smoke`, the command that a user would give.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_lab.config import inventory
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.results.wording import metric_title
from rlhf_lab.studies.frame import read_study

RECIPES = sorted(inventory.recipes())
RUNS = [name for name in RECIPES if not name.startswith("study/")]
STUDIES = [name for name in RECIPES if name.startswith("study/")]
ASKED = (
    "mt_bench",
    *("safety_eval", "eval_suite", "domain_assistant", "agent_bench", "code_bench", "gaia"),
    *("agentic_sft_bench", "agent_of_mixture"),
)
"""Recipes that ask policies, or agents, what a suite, a safety evaluation or a benchmark asks."""
WHOLE = {
    "supervised": "sft_mixed",
    "preference": "dpo_iterative",
    "policy gradient": "ppo",
    "reward model": "prm",
    "pair selection": "pair_margins",
    "evaluation": "rm_report",
    "speech": "tts_dpo",
    "agents": "grpo_agent",
    "code": "grpo_repairs",
    "judging and synthesis": "cai_reward_model",
}
"""The recipe of each family that `make test` runs, with the recipes it starts from; `make test-all` runs the others."""
FAMILIES = {family: name for family, name in WHOLE.items() if name in RECIPES}
"""`WHOLE` without the recipes of packs that are not installed."""
WITHOUT_FIGURE = ("prm_consensus", "step_pairs", "tts_preferences", "rm_probe")
"""Recipes whose report at smoke size has no figure: too few solutions for a curve; pairs of steps or clips; a table."""

COMPLETE_ATTEMPTS = ("study/agentic_sft", "study/mix_ratio_agent")
"""Studies that imitate complete attempts of a policy, of which there are none below `size=smoke`."""


def some(names: Sequence[str]) -> list[Any]:
    """Return recipes as parameters of a test; those outside `FAMILIES` are long tests that any worker may take.

    All workers share the store of the session, which builds a stage once.
    """
    rest = [name for name in names if name not in FAMILIES.values()]
    slow = [
        pytest.param(name, marks=(pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group(name))) for name in rest
    ]
    return [*(name for name in names if name in FAMILIES.values()), *slow]


@pytest.mark.parametrize("name", some(RUNS))
def test_recipe(lab, sized, name):
    is_smoke = name not in FAMILIES.values()
    out = lab.inside(f"+recipe={name}", *(["size=smoke"] if is_smoke else sized(name)))
    result = lab.result(out, name)
    assert result["status"] == "completed"
    report = lab.stage(out, name) / "report.html"
    assert ("<svg" in report.read_text()) == (name not in WITHOUT_FIGURE)
    assert "report" in out.splitlines()[-2]
    for policy in result["policies"]:
        assert policy["name"] in out
        if name in ASKED:  # not compared with a reference response by response, so there is no KL
            continue
        kl = policy["metrics"]["kl"]
        if is_smoke:
            assert 1 <= kl["clusters"] <= kl["n"]
        else:
            assert (kl["n"], kl["clusters"]) == (8, 4)  # two responses to each of four prompts, see `sizes.EVALUATION`
    for metric in result["primary"]:
        assert metric in out or metric not in result["metrics"]
    assert not undeclared(written_keys(lab.stage(out, name), result))


def written_keys(directory: Path, result: dict) -> set[str]:
    """The name of every number that a stage left; those of a benchmark's subsets are the benchmark's own."""
    keys = {key for row in read_jsonl(directory / "metrics.jsonl") for key in row}
    keys |= {key for policy in result["policies"] for key in policy["metrics"]}
    if registered(directory) != "rm_bench":
        keys |= set(result["metrics"])
    return keys


def registered(directory: Path) -> str:
    return inventory.read_yaml(directory / "config.yaml")["algorithm"]["kind"]


def test_a_second_run_reuses_and_gives_the_same_numbers(lab, sized):
    before = lab.completed("dpo_iterative")["dpo_iterative"]
    more = ("checkpoint.every_steps=7", "algorithm.log_every_steps=2")
    second = lab.inside("+recipe=dpo_iterative", *sized("dpo_iterative"), *more)
    assert lab.result(second, "dpo_iterative") == before
    plan = [line for line in second.splitlines() if line.startswith(("  build", "  reuse"))]
    assert len(plan) == 4
    assert all(line.startswith("  reuse") and "built" in line and "ago by 0." in line for line in plan)
    names = [policy["name"] for policy in before["policies"]]
    assert names == ["SFT", "one-pass DPO", "iteration 1", "iteration 2"]
    assert before["policies"][0]["metrics"]["kl"]["mean"] == 0.0


@pytest.mark.parametrize("name", some(STUDIES))
def test_study(lab, sized, name):
    run = lab.run if name == "study/buffers" else lab.inside  # in processes of their own, and here
    more = [] if name == "study/buffers" else ["study.processes=1"]
    written = inventory.read_yaml(inventory.recipes()[name])["study"]
    if written.get("quick"):
        more.append("study.size=quick")
    if written.get("until"):
        more.append("study.until=null")  # with one seed nothing is decided
    size = ["size=smoke"] if name in COMPLETE_ATTEMPTS else sized(name)
    out = run(f"+recipe={name}", *size, "seed=0", *more)
    directory = (
        lab.directory
        / next(line.split()[1] for line in out.splitlines() if line.startswith("table ")).rpartition("/")[0]
    )
    study = json.loads((directory / "study.json").read_text())
    for job in study["jobs"]:
        record = json.loads((directory / "jobs" / str(job["index"]) / "job.json").read_text())
        assert record["status"] == "completed", record
    assert "<svg" in (directory / "report.html").read_text()
    assert (directory / "plot.svg").stat().st_size > 500
    table = (directory / "table.md").read_text()
    stored = read_study(directory)
    for level in map(stored.label, stored.levels):
        assert level in table
        assert level in out
    assert all(metric_title(metric) in table for metric in study["metrics"])


@pytest.mark.parametrize("launcher", ["basic", pytest.param("joblib", marks=[pytest.mark.slow, pytest.mark.long])])
def test_a_failed_job_is_a_row_and_the_partial_study_is_reported(launcher, lab, sized):
    """A learning rate of 1e30 makes the loss infinite; the other job's numbers are not lost."""
    run = lab.inside if launcher == "basic" else lab.run  # joblib: each job in a process of its own
    settings = (*sized("dpo"), "algorithm.lr=1e-4,1e30", "algorithm.log_every_steps=1")
    out = run("+recipe=dpo", *settings, f"hydra/launcher={launcher}", status=1)
    assert "is not finite" in out
    directory = (
        lab.directory
        / next(line.split()[1] for line in out.splitlines() if line.startswith("table ")).rpartition("/")[0]
    )
    records = [json.loads((directory / "jobs" / str(i) / "job.json").read_text()) for i in range(2)]
    assert [record["status"] for record in records] == ["completed", "failed"]
    assert "not finite" in records[1]["error"]
    table = (directory / "table.md").read_text()
    assert "1e+30" in table or "1e30" in table
    assert "failed" in table
    (directory / "report.html").unlink()
    (directory / "jobs" / "1" / "job.json").unlink()
    lab.inside("report", str(directory))
    assert "<svg" in (directory / "report.html").read_text()
