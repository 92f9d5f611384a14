"""A judge and people as sources of an audit's comparisons: packs.judging.rewards.audit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_judge import FakeJudge, text_of
from support import checked, planned, said, toy_rows, write_pairs

from rlhf_lab.core import packs
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.backends.settings import audit_asks, is_requested
from rlhf_lab.packs.judging.judges.requests import Completion
from rlhf_lab.packs.judging.labels.command import audit_store_path, run
from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, TIE, LabelItem
from rlhf_lab.packs.judging.labels.session import LabelSession
from rlhf_lab.packs.judging.labels.store import LabelStore
from rlhf_lab.packs.judging.rewards import audit

ON = ("reward.audit.labels_per_iteration=8", "reward.audit.labels_from=judge")
SERVED = ("judge=openai_compatible", "judge.model=m")


def verdict(request) -> str | Completion:
    """Prefer "good"; refuse to judge "refused"; prefer the response that is shown first between "same" ones."""
    text = text_of(request)
    if "refused" in text:
        return Completion("I would rather not.", "refused")
    if "good" in text:
        return json.dumps({"reason": "", "winner": "A" if text.index("good") < text.index("bad") else "B"})
    return json.dumps({"reason": "", "winner": "A"})


def test_a_comparison_is_asked_in_both_orders(monkeypatch):
    """Win, loss, contradicting orders (a tie), identical texts (a tie without a request), refusal (no answer)."""
    judge = FakeJudge(verdict)
    monkeypatch.setattr(audit, "judge_of", lambda run: judge)
    compare = audit.by_judge(SimpleNamespace())
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


PROMPT = "\n\nHuman: hi\n\nAssistant:"
BY_PEOPLE = ("reward.audit.labels_per_iteration=8", "reward.audit.labels_from=human")


@pytest.fixture
def asking(tmp_path, monkeypatch) -> SimpleNamespace:
    """A run that asks people and looks for their answers 200 times a second."""
    monkeypatch.setattr(audit, "POLL_SECONDS", 0.005)
    waits = SimpleNamespace(wait_minutes=1.0)
    config = SimpleNamespace(reward=SimpleNamespace(audit=waits))
    return SimpleNamespace(directory=tmp_path / "ppo-1", config=config, stopping=threading.Event())


def answer(store: LabelStore, who: str, item: LabelItem, winner: str | None) -> None:
    store.label(f"{who} {item.id}", who, item.id, winner=winner, shown=FIRST, seconds=1.0)


def answer_all(path: Path, winners: dict[str, str | None]) -> threading.Thread:
    """Start a person who answers as many comparisons as there are winners; `winners` has the policy's responses."""

    def work() -> None:
        store = LabelStore(path, create=True)
        left = dict(winners)
        while left:
            item = store.next_item("ana")
            if item is not None:
                answer(store, "ana", item, left.pop(item.first))
        store.close()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_training_waits_for_the_answers(asking):
    """Win 1, loss 0, tie ½, skip NaN; identical responses are a tie that nobody is asked about."""
    path = audit_store_path(asking.directory)
    person = answer_all(path, {"a": FIRST, "b": SECOND, "c": TIE, "d": None})
    compare = audit.by_people(asking)
    policy = said([PROMPT] * 6, ["a", "b", "c", "d", "same", "a"])
    start = said([PROMPT] * 6, ["s", "s", "s", "s", "same", "s"])
    np.testing.assert_array_equal(compare(policy, start), [1.0, 0.0, 0.5, np.nan, 0.5, 1.0])
    person.join()
    assert path.name == "ppo-1.audit.labels.sqlite" and path.parent == asking.directory.parent
    # a resumed run repeats the iteration: its answers are in the store, so it does not wait
    asking.config.reward.audit.wait_minutes = 0.0
    again = audit.by_people(asking)
    np.testing.assert_array_equal(again(policy, start), [1.0, 0.0, 0.5, np.nan, 0.5, 1.0])


def test_the_first_answer_counts_and_a_skip_leaves_it_to_others(asking):
    asking.config.reward.audit.wait_minutes = 0.0
    compare = audit.by_people(asking)
    policy, start = said([PROMPT], ["a"]), said([PROMPT], ["s"])
    assert np.isnan(compare(policy, start)[0])
    store = LabelStore(audit_store_path(asking.directory))
    item = store.next_item("ana")
    for who, winner in (("ana", None), ("bo", SECOND), ("cy", FIRST)):
        answer(store, who, item, winner)
    assert compare(policy, start).tolist() == [0.0]


@pytest.mark.parametrize("how", ["late", "stopped"])
def test_training_goes_on_without_answers(asking, how):
    if how == "late":
        asking.config.reward.audit.wait_minutes = 0.001
    else:
        asking.stopping.set()  # Ctrl-C: the stage is saved instead of waiting a minute
    compare = audit.by_people(asking)
    assert np.isnan(compare(said([PROMPT], ["a"]), said([PROMPT], ["s"]))).all()


def test_an_added_item_comes_last_and_the_page_looks_for_it(tmp_path):
    store = LabelStore(tmp_path / "x.labels.sqlite", create=True)
    first, second = (LabelItem(name, name, PROMPT, f"{name}1", f"{name}2") for name in "zy")
    assert store.add([first]) == 1
    session = LabelSession(store, "ana", 0, "the judge", grows=True)
    answer(store, "ana", first, TIE)
    state = session.state()
    assert state["item"] is None and state["grows"]
    assert store.add([first, second]) == 1  # of the two, one has no answer
    assert session.state()["item"]["id"] == "y" and session.state()["progress"]["total"] == 2
    with pytest.raises(ConfigError, match="another comparison with the id 'z'"):
        store.add([LabelItem("z", "z", PROMPT, "other", "z2")])


def test_a_store_is_a_source_with_its_own_comparisons(tmp_path, monkeypatch):
    path = tmp_path / "ppo-1.audit.labels.sqlite"
    LabelStore(path, create=True).add([LabelItem("z", "z", PROMPT, "z1", "z2")])
    with pytest.raises(ConfigError, match="is a label store with its own comparisons"):
        run([str(path), "items=3"])
    served = []
    monkeypatch.setattr(
        "rlhf_lab.packs.judging.labels.server.serve",
        lambda session, **options: served.append((session.state()["item"]["id"], options["export_command"])),
    )
    run([str(path), "annotator=ana"])
    command = f"python -m rlhf_lab label {path} export=ppo-1.audit.labels.jsonl"
    assert served == [("z", command)]


def test_people_compare_single_responses_and_need_no_true_reward():
    stage = planned("grpo", *BY_PEOPLE)
    assert "rlhf_lab/packs/judging/rewards/audit.py:by_people" in stage.code
    with pytest.raises(ConfigError, match=r"labels_from=human compares single responses"):
        checked("grpo_agent", *BY_PEOPLE)
