"""A missing key, price, library or model of a judge is a problem before anything is built."""

from __future__ import annotations

import pytest
from support import planned

from rlhf_lab.stages import preflight
from rlhf_lab.training.stage_spec import RewardUse


def problems(recipe: str, *overrides: str) -> str:
    return "\n".join(preflight.problems(planned(recipe, *overrides)))


@pytest.fixture
def asks_judge(monkeypatch):
    """Supervised learning as a stage that asks the judge."""
    from rlhf_lab.algorithms.supervised.settings import SFT

    monkeypatch.setattr(SFT, "reward_use", RewardUse(asks_judge=True))


def test_a_judge_without_key_price_or_library(monkeypatch, asks_judge):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert "the environment variable ANTHROPIC_API_KEY has no key" in problems("sft", "judge=anthropic")
    assert "judge.model=claude-9 has no price" in problems("sft", "judge=anthropic", "judge.model=claude-9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-key-1234")
    assert problems("sft", "judge=anthropic") == ""
    local_server = ["judge=openai_compatible", "judge.base_url=http://127.0.0.1:8000/v1", "judge.model=m"]
    assert problems("sft", *local_server) == ""
    missing = ("anthropic", "openai")
    monkeypatch.setattr(
        "rlhf_lab.packs.judging.judges.preflight.find_spec", lambda name: None if name in missing else object()
    )
    assert "judge=anthropic needs a library" in problems("sft", "judge=anthropic")
    assert "pip install 'rlhf_lab[judge]'" in problems("sft", *local_server)


def test_a_local_judge_that_is_no_model(asks_judge, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "judge.path=" in problems("sft", "judge=local", f"judge.path={tmp_path / 'empty'}")


def test_a_judge_that_nobody_asks_needs_nothing(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert problems("sft", "judge=anthropic") == ""
