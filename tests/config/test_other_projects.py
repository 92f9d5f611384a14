"""The pages for users of TRL and verl name settings that exist, here and in TRL."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlhf_lab.cli.explain import catalogue
from rlhf_lab.config import inventory, registry, root

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHOICES = (
    *(["algorithm=grpo", "rollout=vllm", "model=gpt2"], ["algorithm=ppo", "sharding=fsdp_full", "tracker=wandb"]),
    *(["algorithm=dpo", "data=pairs"], ["algorithm=reward_model"], ["data=verifiable", "reward=callable"]),
)
"""Commands whose settings together are those of the pages."""
OF_TRAINERS = {"peft_config", "reward_funcs"}
"""Arguments of TRL's trainers besides their config."""


def rows(page: str) -> list[tuple[set[str], set[str]]]:
    """Return (names of the other project, names of rlhf_lab) of each row of a page's tables with three columns."""
    text = (DOCS / page).read_text(encoding="utf-8")
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    named = [[set(re.findall(r"`([^`]+)`", cell)) for cell in row[:2]] for row in cells if len(row) == 3]
    return [(other, own) for other, own in named if other]


@cache
def keys() -> set[str]:
    return {key for overrides in CHOICES for key in catalogue(overrides)} | {"needs.reward"}


@pytest.mark.parametrize("page", ["from_trl.md", "from_verl.md"])
def test_settings_of_the_page_exist(page: str) -> None:
    named = {name for _, own in rows(page) for name in own}
    assert len(named) >= 40
    for name in sorted(named):
        key, equals, value = name.partition("=")
        if key in registry.groups():
            assert value in inventory.options(key), name
            continue
        assert key in keys() or key in root.names(), name
        if equals and value.isalpha():
            choices = {choice for overrides in CHOICES for choice in _choices(overrides, key)}
            assert not choices or value in choices, name


def _choices(overrides: list[str], key: str) -> tuple[str, ...]:
    setting = catalogue(overrides).get(key)
    return setting.choices if setting else ()


def test_arguments_of_trl_exist() -> None:
    spec, of_transformers = find_spec("trl"), find_spec("transformers")
    if spec is None or spec.origin is None or of_transformers is None or of_transformers.origin is None:
        pytest.skip("TRL is not installed")
    fields: set[str] = set()
    configs = (Path(spec.origin).parent / "trainer").glob("*_config.py")
    for file in (*configs, Path(of_transformers.origin).parent / "training_args.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        annotated = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
        fields |= {node.target.id for node in annotated if isinstance(node.target, ast.Name)}
    named = {name.partition("=")[0] for other, _ in rows("from_trl.md") for name in other}
    unknown = named - fields - OF_TRAINERS - {"dataset_name"}
    assert {"num_generations", "center_rewards_coefficient"} <= named and not unknown
