"""Cost per label: of a judge with a ledger, of a judge that charges nothing, and of a person's time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_judge import FakeJudge
from judge_server import PRICES, JudgeServer, connect, question

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.packs.judging.judges.context import label_cost
from rlhf_lab.packs.judging.labels import command
from rlhf_lab.packs.judging.labels.items import LabelItem
from rlhf_lab.packs.judging.labels.session import LabelSession
from rlhf_lab.packs.judging.labels.store import LabelStore


def test_what_the_service_billed_divided_by_the_labels(tmp_path):
    notes: list[str] = []
    run = SimpleNamespace(note=notes.append)
    with JudgeServer() as server:
        client = connect(server.url, "anthropic", tmp_path)
        client.complete_many([question(i) for i in range(8)])
        billed = server.billed_usd(PRICES["anthropic"])
        assert billed > 0
        cost = label_cost(run, client, 4)
        assert cost == {"judge/usd": pytest.approx(billed), "judge/usd_per_label": pytest.approx(billed / 4)}
        assert not undeclared(cost)
        # another run reads the stored answers for nothing
        other = connect(server.url, "anthropic", tmp_path, account="other")
        other.complete_many([question(i) for i in range(8)])
        assert label_cost(run, other, 4)["judge/usd"] == 0
        assert "judge/usd_per_label" not in label_cost(run, client, 0)
    assert f"${billed:.4f} in total, ${billed / 4:.2g} for each of 4 labels" in notes[0] and "no label" in notes[2]


def test_a_judge_without_a_ledger_has_no_cost():
    assert label_cost(SimpleNamespace(note=pytest.fail), FakeJudge(lambda request: ""), 3) == {}


def test_a_person_s_time(tmp_path):
    """(6 + 12) s / 2 = 9 s per label; at $40 an hour 9/3600 · 40 = $0.10. Labels of others and skips do not count."""
    store = LabelStore(tmp_path / "x.labels.sqlite", create=True)
    items = [LabelItem(f"i{k}", str(k), f"\n\nHuman: {k}?\n\nAssistant:", "a", "b") for k in range(4)]
    store.start(items, seed=0)
    for item, who, winner, seconds in (("i0", "ana", "first", 6), ("i1", "ana", "tie", 12), ("i0", "ben", "first", 99)):
        store.label(f"{who}{item}", who, item, winner=winner, shown="first", seconds=seconds)
    store.label("skip", "ana", "i2", winner=None, shown="first", seconds=50)
    assert LabelSession(store, "ana", 0, "", 40.0).summary()[1] == "9.0 s per label, $0.1 per label"
    assert LabelSession(store, "ana", 0, "").summary()[1] == "9.0 s per label"
    assert len(LabelSession(store, "eve", 0, "").summary()) == 1


@pytest.mark.parametrize("text", ["0", "-3", "nan", "1e400", "thirty"])
def test_a_rate_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match=r"usd_per_hour=.*expected a number above 0, such as 30"):
        command.run(["x.jsonl", f"usd_per_hour={text}"])
