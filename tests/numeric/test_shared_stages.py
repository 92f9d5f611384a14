"""Two gloo processes build the stages that audit, compare and cross-fit as one process does.

What is compared is what a stage leaves: each step's loss, the numbers of its result, the files of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from processes import together
from support import SMALL_WORLD, once, planned
from test_sharding import SIZE, STEPS, steps

from rlhf_lab.core.files import read_json, read_jsonl, write_json
from rlhf_lab.stages.execute import execute

pytestmark = pytest.mark.slow

SUMS = (
    *("data=arithmetic_small", "data.train_problems=64", "data.test_problems=24", "rollout.max_new_tokens=16"),
    *("evaluation.prompts=6", "evaluation.samples_per_prompt=2"),
)
FULL = "sharding=fsdp_full"
CASES = {
    "rubric_rm": ("rubric_rm", *SMALL_WORLD, *SIZE, *STEPS, "algorithm.target=attributes"),
    "pair_margins": ("pair_margins", *SMALL_WORLD, *SIZE, *STEPS, "algorithm.folds=2"),
    "prm": ("prm_perturbed", *SUMS, *SIZE, *STEPS, "algorithm.problems=24"),
    "orm": ("orm", *SUMS, *SIZE, *STEPS, "algorithm.problems=16", "algorithm.trajectories=2"),
    "best_of_n": ("best_of_n", *SMALL_WORLD, "algorithm.samples=4"),
    "compare": ("compare_policies", *SMALL_WORLD),
    "rm_report": ("rm_report", *SMALL_WORLD),
    "rm_bench": ("rm_bench", *SMALL_WORLD),
    "step_report": ("step_report", *SUMS, "algorithm.samples=4", "algorithm.choose_from=2"),
}
NEEDS = {
    "best_of_n": {"policy": "sft", "reward": "reward_model"},
    "compare": {
        **{"reference": "sft", "dpo": "other", "reward": "reward_model"},
        **dict.fromkeys(("dpo_iterative", "ppo", "grpo", "rloo")),
    },
    "rm_report": {"policy": "sft", "reward": "reward_model"},
    "rm_bench": {"reward": "reward_model"},
    "step_report": {"policy": "sums", "judge": "judge"},
    "prm": {"policy": "sums"},
    "orm": {"policy": "sums"},
}
"""Case → role → one of the models of `build_needs`; None drops the role. The others start from `sft`."""
PLAN = {
    ("rubric_rm", "sharding=ddp"): 5e-6,
    ("pair_margins", FULL): 5e-6,
    ("prm", FULL): 5e-6,
    ("orm", "sharding=fsdp_grad_op"): 5e-6,
    **{(case, "sharding=ddp"): 5e-5 for case in ("best_of_n", "compare", "rm_report", "rm_bench", "step_report")},
}
"""(case, strategy) → largest relative difference from one process."""
FILES = {
    "pair_margins": "margins.jsonl",
    "best_of_n": "evaluation.jsonl",
    "compare": "evaluation.jsonl",
    "rm_report": "evaluation.jsonl",
    "step_report": "steps.jsonl",
}


def stage(case: str, out: Path, needs: dict[str, str], *more: str) -> Any:
    roles = NEEDS.get(case, {"policy": "sft"})
    chosen = [f"needs.{role}={needs[name] if name else 'null'}" for role, name in roles.items()]
    return planned(*CASES[case], *chosen, *more, f"outputs={out}")


def position(out: Path, case: str, strategy: str) -> Path:
    return out / f"{case}-{strategy.partition('=')[2]}"


def build_all(out: Path, needs: dict[str, str]) -> None:
    for case, strategy in PLAN:
        execute(stage(case, position(out, case, strategy), needs, strategy))


def build_needs(out: Path) -> None:
    """Two policies and a reward model of the small world, a policy and a judge of steps for sums."""
    needs: dict[str, str] = {}

    def build(name: str, planned_stage: Any) -> None:
        execute(planned_stage)
        needs[name] = planned_stage.model

    build("sft", planned("sft", *SMALL_WORLD, *SIZE, *STEPS, f"outputs={out}"))
    build("other", planned("sft", *SMALL_WORLD, *SIZE, *STEPS, "seed=1", "data.seed=0", f"outputs={out}"))
    build("sums", planned("sft", *SUMS, *SIZE, *STEPS, f"outputs={out}"))
    policy = f"needs.policy={needs['sft']}"
    build("reward_model", planned("reward_model", *SMALL_WORLD, *SIZE, *STEPS, policy, f"outputs={out}"))
    build("judge", stage("prm", out, needs))
    write_json(out / "needs.json", needs)


@pytest.fixture(scope="module")
def needs(shared_tmp: Path) -> dict[str, str]:
    return read_json(once(shared_tmp / "stages-needs", build_needs) / "needs.json")


@pytest.fixture(scope="module")
def built(shared_tmp: Path, needs: dict[str, str]) -> Path:
    """All cases by two processes."""
    return once(shared_tmp / "stages-two", lambda out: together(build_all, out, needs))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory, needs: dict[str, str]) -> Callable[[str], Path]:
    out = tmp_path_factory.mktemp("one")

    @cache
    def directory(case: str) -> Path:
        found = stage(case, out / case, needs)
        execute(found)
        return found.directory

    return directory


def split(row: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """(numbers of a row, those of a list one by one; everything else)."""
    parts = {
        f"{name}/{i}": part for name, value in row.items() if isinstance(value, list) for i, part in enumerate(value)
    }
    numbers = {name: value for name, value in {**row, **parts}.items() if isinstance(value, (int, float))}
    return numbers, {name: value for name, value in row.items() if not isinstance(value, (int, float, list))}


@pytest.mark.parametrize(("case", "strategy"), PLAN)
def test_two_processes_leave_what_one_leaves(
    case: str, strategy: str, built: Path, single: Callable[[str], Path]
) -> None:
    tolerance = PLAN[case, strategy]
    (directory,) = (position(built, case, strategy) / "runs").glob("*-*")
    one, two = (read_json(path / "result.json") for path in (single(case), directory))
    assert two["status"] == "completed" and two["notes"] == one["notes"]
    for expected, found in zip(steps(single(case)), steps(directory), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=tolerance, abs=1e-6)
    for mine, theirs in ((one, two), *zip(one["policies"], two["policies"], strict=True)):
        assert mine["metrics"].keys() == theirs["metrics"].keys()
        for name, value in mine["metrics"].items():
            if isinstance(value, dict):
                other = theirs["metrics"][name]
                assert other["n"] == value["n"], name
                assert other["mean"] == pytest.approx(value["mean"], rel=1e-3, abs=1e-4, nan_ok=True), name
    if case in FILES:
        rows, others = (read_jsonl(path / FILES[case]) for path in (single(case), directory))
        assert len(rows) > 4
        for row, other in zip(rows, others, strict=True):
            (numbers, texts), (others_numbers, others_texts) = split(row), split(other)
            assert others_texts == texts
            assert others_numbers == pytest.approx(numbers, rel=1e-3, abs=1e-4, nan_ok=True)
