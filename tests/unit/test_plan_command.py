"""`plan` and `plan table` as commands: what they print, what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import SMALL_WORLD

from rlhf_lab.cli.plan import run
from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.table import grids, page

ROOT = Path(__file__).parents[2]


def printed(*words: str) -> str:
    with console.capture() as captured:
        run(words)
    return captured.get()


def test_a_plan_shows_copies_phases_and_derivation(tmp_path: Path) -> None:
    out = printed("+recipe=ppo", *SMALL_WORLD, f"outputs={tmp_path}", "runtime.memory_gib=8")
    for stage in ("sft: bytes per process", "reward_model: bytes per process", "ppo: bytes per process"):
        assert stage in out
    for word in ("policy", "reference", "critic", "reward bt", "sampler", "peak of each phase", "fits"):
        assert word in out
    assert "weights 4 + gradient 4 + moments 8 = 16 B" in out
    assert not any(tmp_path.iterdir())  # a plan builds nothing


def test_a_plan_that_does_not_fit_says_what_does() -> None:
    gpu = ("runtime.device=cuda", "runtime.memory_gib=12")
    out = printed("+recipe=dpo", "model=hf", "model.path=gpt2-medium", *gpu, "cards=24,80")
    assert "does not fit" in out and out.count("fit with: ") == 1
    assert "24 GB" in out and "80 GB" in out and "frugal" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["model=tiny"], "plan needs a recipe"),
        (["+recipe=sft", "cards=big"], "cards=big is not a list of GB"),
        (["+recipe=sft", "card=24"], "card is not an option of plan; did you mean cards?"),
        (["+recipe=study/buffers"], r"plan \+recipe=study/buffers algorithm.buffer=current seed=0$"),
        (["+recipe=study/reward_steps"], r"needs.design=criteria_fitted data.train_pairs=1600 study.until=null$"),
        (["table", "all"], "accepts only to=FILE, not all"),
    ],
)
def test_mistakes_are_named(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run(words)


def test_the_accepted_page_is_what_the_command_writes(tmp_path: Path) -> None:
    run(["table", f"to={tmp_path / 'memory_plan.md'}"])
    written = (tmp_path / "memory_plan.md").read_text(encoding="utf-8")
    assert written == page(grids())
    assert written == (ROOT / "docs/results/memory_plan.md").read_text(encoding="utf-8")


def test_a_folder_that_is_not_there_is_told_by_name() -> None:
    with pytest.raises(ConfigError, match=r"model\.path=/nowhere/m: there is no such directory"):
        COMMANDS["plan"](["+recipe=dpo", "model=hf", "model.path=/nowhere/m"])
