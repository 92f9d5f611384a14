"""The first hour of a new user in a fresh clone: each command that they type, and what it must answer."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sizes import overrides
from support import toy_rows

ROOT = Path(__file__).parents[2]
ODD_COLUMNS = ("the question", "bad answer", "good answer")
DEMO = ("+recipe=dpo_iterative", *overrides("dpo_iterative"))
OWN_REWARD = (
    "+recipe=grpo",
    "reward=callable",
    "reward.terms.callable.function=my_rewards.py:brevity",
    "needs.reward=null",
    *(override for override in overrides("grpo") if not override.startswith("stages.reward_model.")),
)
ONE_LAYER_MICRO = ("model=micro", "model.hidden=16", "model.layers=1", "model.heads=2")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("first_hour")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory, lab_in) -> Iterator[Any]:
    """A fresh clone; every step of the hour works in it, as one user would."""
    directory = tmp_path_factory.mktemp("first_hour") / "clone"
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(directory)], check=True)
    else:
        shutil.copytree(ROOT, directory, ignore=shutil.ignore_patterns("outputs", ".venv", "__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(directory))  # the clone's code, not that of the tests
        yield lab_in(directory)


@pytest.fixture(scope="module")
def demo(clone) -> str:
    """Return the output of the first run of the demo."""
    return clone.run(*DEMO)


@pytest.fixture(scope="module")
def odd_data(clone) -> dict[str, Path]:
    """The same preference pairs in two formats; the rejected response's column comes before the chosen one's."""
    rows = [
        {"the question": question, "bad answer": rejected, "good answer": chosen}
        for question, chosen, rejected in toy_rows(40)
    ]
    directory = clone.directory
    with (directory / "mine.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ODD_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    pq.write_table(pa.Table.from_pylist(rows), directory / "mine.parquet")
    return {name: Path(f"mine.{name}") for name in ("csv", "parquet")}


def plan_lines(out: str) -> dict[str, str]:
    """Recipe of each stage → its row of the plan: build or reuse, directory, reason."""
    lines = re.findall(r"^  (?:build|reuse)\s.*$", out, re.MULTILINE)
    return {line.split()[1]: line for line in lines}


def verbs(out: str) -> dict[str, str]:
    """Recipe of each stage → build or reuse."""
    return {recipe: line.split()[0] for recipe, line in plan_lines(out).items()}


def first_after_plan(out: str) -> str:
    """The first unindented line after the plan (plan and progress are indented): the answer."""
    lines = out.splitlines()
    models = next(index for index, line in enumerate(lines) if line.startswith("  models:"))
    return next(line for line in lines[models + 1 :] if not line.startswith(" "))


def suggested(out: str) -> list[str]:
    """Settings that an error message proposes, as a shell would take them."""
    flat = " ".join(out.split())
    return [
        word
        for word in shlex.split(flat.partition("Then write ")[2])
        if word.startswith(("data.prompt=", "data.chosen=", "data.rejected="))
    ]


def test_the_demo_answers_and_is_kept(clone, demo):
    assert set(verbs(demo).values()) == {"build"}
    assert "iterating and one pass of DPO" in " ".join(demo.split())
    assert re.match(r"(Yes|No|Not distinguishable)\b", first_after_plan(demo)), demo
    directory = clone.stage(demo, "dpo_iterative")
    assert (directory / "report.html").exists()
    assert json.loads((directory / "result.json").read_text())["status"] == "completed"
    again = clone.run(*DEMO)
    assert verbs(again) == dict.fromkeys(verbs(demo), "reuse")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_own_data_with_odd_columns(clone, odd_data, form):
    audited = ("audit", "data=pairs", f"data.path={odd_data[form]}")
    out = clone.run(*audited, status=2)
    assert "Traceback" not in out
    columns = suggested(out)
    assert columns == ['data.prompt="the question"', 'data.chosen="good answer"', 'data.rejected="bad answer"']
    if form == "csv":
        trained = ("+recipe=reward_model", "size=smoke", *ONE_LAYER_MICRO, *audited[1:], *columns)
        out = clone.run(*trained)
        assert clone.result(out, "reward_model")["status"] == "completed"
    else:
        assert "40" in clone.run(*audited, *columns)


def test_an_own_reward_and_an_edit_of_it(clone, demo):
    documented = (clone.directory / "docs/rewards.md").read_text().split("<!-- my_rewards.py -->\n```")[1]
    source = documented.partition("\n")[2].split("```")[0]
    file = clone.directory / "my_rewards.py"
    file.write_text(source)
    assert verbs(clone.run(*OWN_REWARD)) == {"sft": "reuse", "grpo": "build"}
    assert "/ 10" in source
    file.write_text(source.replace("/ 10", "/ 20"))
    again = clone.run(*OWN_REWARD)
    assert verbs(again) == {"sft": "reuse", "grpo": "build"}
    assert "again: my_rewards.py (brevity) changed" in plan_lines(again)["grpo"]


def test_an_edit_of_a_loss(clone, demo):
    file = clone.directory / "rlhf_lab/losses/preference.py"
    source = file.read_text()
    edited = source.replace("margin_B = beta *", "margin_B = 2 * beta *", 1)  # the first loss is DPO
    assert edited != source
    file.write_text(edited)
    try:
        ignored = clone.run(*DEMO, "artifacts.code=ignore")
        assert set(verbs(ignored).values()) == {"reuse"}
        assert "by other code (artifacts.code=ignore)" in plan_lines(ignored)["dpo"]
        out = clone.run(*DEMO)
    finally:
        file.write_text(source)
    assert verbs(out) == {"sft": "reuse", "reward_model": "reuse", "dpo": "build", "dpo_iterative": "build"}
    for recipe in ("dpo", "dpo_iterative"):
        assert "again: losses/preference.py (dpo) changed" in plan_lines(out)[recipe]
    assert set(verbs(clone.run(*DEMO)).values()) == {"reuse"}
