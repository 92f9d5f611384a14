"""A judge as the source of an audit's comparisons: packs.judging.rewards.comparisons."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_judge import FakeJudge, text_of
from support import checked, planned, said, toy_rows, write_pairs

from rlhf_lab.core import packs
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.backends.settings import audit_asks, is_requested
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.packs.judging.rewards import audit as comparisons

ON = ("reward.audit.labels_per_iteration=8", "reward.audit.labels_from=judge")
SERVED = ("judge=openai_compatible", "judge.model=m")


def answer(request) -> str | Completion:
    """Prefer "good"; refuse to judge "refused"; prefer the response that is shown first between "same" ones."""
    text = text_of(request)
    if "refused" in text:
        return Completion("I would rather not.", "refused")
    if "good" in text:
        return json.dumps({"reason": "", "winner": "A" if text.index("good") < text.index("bad") else "B"})
    return json.dumps({"reason": "", "winner": "A"})


def test_a_comparison_is_asked_in_both_orders(monkeypatch):
    """Win, loss, contradicting orders (a tie), identical texts (a tie without a request), refusal (no answer)."""
    judge = FakeJudge(answer)
    monkeypatch.setattr(comparisons, "judge_of", lambda run: judge)
    compare = comparisons.by_judge(SimpleNamespace())
    prompts = ["\n\nHuman: hi\n\nAssistant:"] * 5
    policy = said(prompts, ["good", "bad", "same one", "equal", "refused"])
    start = said(prompts, ["bad", "good", "same other", "equal", "bad"])
    np.testing.assert_array_equal(compare(policy, start), [1.0, 0.0, 0.5, 0.5, np.nan])
    assert len(judge.asked) == 8


def test_an_audit_by_a_judge_needs_no_gold_and_has_the_judge_in_its_key(tmp_path):
    data = ("data=pairs", f"data.path={write_pairs(tmp_path / 'pairs.jsonl', toy_rows(20))}")
    stage = planned("grpo", *data, *ON, *SERVED)
    assert audit_asks(stage.config) and is_requested(stage.config)
    assert "rlhf_lab/packs/judging/rewards/audit.py:by_judge" in stage.code
    other = planned("grpo", *data, *ON, "judge=openai_compatible", "judge.model=n")
    off = planned("grpo", *data, *SERVED, "reward.audit.labels_from=judge")
    assert len({stage.settings_key, other.settings_key, off.settings_key}) == 3
    assert not is_requested(off.config)
    assert packs.named("comparers")["judge"] == "rlhf_lab.packs.judging.rewards.audit:by_judge"


def test_a_judge_does_not_audit_training_on_itself():
    with pytest.raises(ConfigError, match=r"labels_from=judge: reward=judge trains on the same judge"):
        checked("grpo", *ON, "needs.reward=null", "reward=judge")
    with pytest.raises(ConfigError, match=r"labels_from=judge compares single responses"):
        checked("grpo_agent", *ON)
