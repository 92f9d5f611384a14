"""Every node of the reward graph by hand, and what holds for all of them: purity, order of rows, linearity, bits."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import said

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus, Pair, RewardBatch
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.combine import SCALES_FILE, aggregate, combine, with_scales
from rlhf_lab.rewards.confidence import stated_confidence, without_confidence
from rlhf_lab.rewards.graph import GraphReward, build_graph, part_means
from rlhf_lab.rewards.rules.settings import Gold, Length
from rlhf_lab.rewards.settings import RewardGraph

PARTS = {"a": np.array([1.0, -2.0, np.nan]), "b": np.array([0.5, 4.0, 1.0])}
NODES = [
    {},
    {"temperature": 0.7},
    {"max_confidence": 0.9},
    {"confidence_weight": 0.5, "temperature": 2.0},
]


def graph(a: dict | None = None, b: dict | None = None, **settings) -> RewardGraph:
    return RewardGraph(terms={"a": Gold(**(a or {})), "b": Gold(**(b or {}))}, **settings)


def test_terms_are_combined_by_hand():
    """(4 − 1)/2 = 1.5; 2·σ(1.5)."""
    term = Gold(standardise="fixed", mean=1.0, sd=2.0, transform="sigmoid", weight=2.0)
    found = combine({"a": np.array([4.0])}, RewardGraph(terms={"a": term}))
    assert found[0] == pytest.approx(2 / (1 + math.exp(-1.5)))
    own = graph({"weight": 5.0}, {"weight": 5.0})
    assert combine(PARTS, graph({"weight": 5.0}, weights={"a": 0.5, "b": 0.5}))[0] == 0.75
    assert combine(PARTS, own)[0] == 7.5
    assert graph(weights={"b": 1.0}).weighting == {"a": 0.0, "b": 1.0}
    assert combine(PARTS, graph(weights={"b": 2.0})).tolist() == [1, 8, 2]
    assert combine(PARTS, graph({"weight": 0.0})).tolist() == [0.5, 4, 1]


def test_no_margin_claims_more_than_the_largest_confidence():
    """logit(.9) = ln 9: responses end up within ± ln 9 / 2, so two of them differ by less than ln 9."""
    found = combine({"a": np.array([-50.0, 0.0, 50.0])}, RewardGraph(terms={"a": Gold()}, max_confidence=0.9))
    assert found == pytest.approx([-math.log(9) / 2, 0, math.log(9) / 2])
    margin = found[2] - found[0]
    assert 1 / (1 + math.exp(-margin)) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Paris. Confidence: 8/10", 0.8),
        ("Paris. Confidence: 80%", 0.8),
        ("Paris. Confidence level: 7", 0.7),
        ("Paris. Confidence: 0.65", 0.65),
        ("Paris.\n\n**Confidence:** 8/10", 0.8),
        ("Paris. Confidence: 85", 0.85),
        ("Paris. I am 90% sure.", 0.9),
        ("Confidence: 2/10. No, confidence: 9/10", 0.9),
        ("Confidence: 12/10", 1.0),
        ("Confidence: 5/0", math.nan),
        ("8 out of 10 dentists say so; 80% of them.", math.nan),
    ],
)
def test_a_stated_confidence_is_read(text, stated):
    assert stated_confidence(text) == pytest.approx(stated, nan_ok=True)


def test_the_terms_see_the_reply_without_its_confidence():
    assert without_confidence("It is Paris. Confidence: 8/10.") == "It is Paris."
    assert without_confidence("I am 90% sure. It is Paris.") == "It is Paris."
    assert without_confidence("It is Paris.\n\n**Confidence:** 8/10") == "It is Paris."
    assert without_confidence("8 out of 10 dentists agree.") == "8 out of 10 dentists agree."
    seen: list[str] = []

    def term(prompts, responses):
        seen.extend(responses)
        return RewardBatch(np.zeros(len(responses)))

    settings = RewardGraph(terms={"a": Gold()}, confidence_weight=0.5)
    GraphReward({"a": CheckedReward("a", term)}, settings)(said(["p"], ["Yes. Confidence: 9/10"]))
    assert seen == ["Yes."]


def confident_graph() -> GraphReward:
    def term(prompts, responses):
        return RewardBatch(np.array([float(text.split()[0]) for text in responses]))

    return GraphReward({"a": CheckedReward("a", term)}, RewardGraph(terms={"a": Gold()}, confidence_weight=0.5))


def test_ppo_c_by_hand_and_its_state():
    """r + ½·(r − r̄)·(c − ½). r̄ starts at 0 and becomes .9·0 + .1·mean(2, 4) = .3 once training has seen the batch."""
    reward, texts = confident_graph(), ["2 Confidence: 9/10", "4"]
    batch = reward(said(["p"] * 2, texts))
    assert batch.total_N.tolist() == pytest.approx([2 + 0.5 * 2 * 0.4, 4])
    assert reward(said(["p"] * 2, texts)).total_N.tolist() == batch.total_N.tolist(), "an evaluation moved the mean"
    reward.observe(batch)
    assert reward.baseline == pytest.approx(0.3)
    again = confident_graph()
    again.load_state_dict(json.loads(json.dumps(reward.state_dict())))
    found = again(said(["p"] * 2, texts))
    assert found.total_N[0] == pytest.approx(2 + 0.5 * (2 - 0.3) * 0.4)
    assert found.parts["confidence/baseline"].tolist() == [again.baseline] * 2
    assert np.isnan(found.parts["confidence"][1]) and found.parts["aggregate"].tolist() == [2, 4]


def world(values: list[float], directory):
    pairs = [Pair("p", " ".join(["word"] * int(value)), "x") for value in values]
    return SimpleNamespace(
        corpus=Corpus("toy", pairs, [], ""), directory=directory, notes=[], config=SimpleNamespace(), needs={}
    )


def test_the_scale_of_the_corpus_is_measured_once_and_kept(tmp_path):
    """Words 1, 3: mean 2, sd 1, in units of 10 words."""
    settings = RewardGraph(terms={"length": Length(standardise="corpus")})
    reward = build_graph(settings, world([1, 3], tmp_path))
    assert reward(said(["p"], ["one two three four"])).total_N[0] == pytest.approx((0.4 - 0.2) / 0.1)
    scales = json.loads((tmp_path / SCALES_FILE).read_text())
    assert scales["length"] == {"mean": pytest.approx(0.2), "sd": pytest.approx(0.1), "n": 2}
    again = combine({"length": np.array([0.4])}, with_scales(settings, scales))
    assert again[0] == reward(said(["p"], ["one two three four"])).total_N[0], "the file gives other bits than the run"
    with pytest.raises(ConfigError, match="no scale"):
        build_graph(settings, world([2, 2], tmp_path / "other"))


def test_what_later_nodes_change_is_kept_as_it_was():
    def term(prompts, responses):
        return RewardBatch(np.array([3.0]))

    reward = GraphReward({"a": CheckedReward("a", term)}, RewardGraph(terms={"a": Gold(weight=2.0)}, temperature=2.0))
    batch = reward(said(["p"], ["x"]))
    assert (batch.total_N[0], batch.parts["aggregate"][0], batch.parts["a"][0]) == (3, 6, 3)
    assert part_means({"a": np.array([1.0, np.nan, 3.0]), "b": np.array([np.nan])}) == {
        "reward/a": 2,
        "reward/b": pytest.approx(math.nan, nan_ok=True),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"c": 1.0}}, "weights: c is not one of the terms a, b"),
        ({"weights": {"a": 0.0}}, "all 0"),
        ({"weights": {"a": math.nan}}, "finite"),
        ({"max_confidence": 0.4}, "must be 0 .off. or above 0.5"),
    ],
)
def test_graphs_that_make_no_sense(settings, message):
    with pytest.raises(ConfigError, match=message):
        graph(**settings)


def test_terms_that_make_no_sense():
    with pytest.raises(ConfigError, match="another node"):
        RewardGraph(terms={"aggregate": Gold()})
    with pytest.raises(ConfigError, match="standardise=fixed only"):
        Gold(mean=1.0)
    with pytest.raises(ConfigError, match="sd=0"):
        Gold(standardise="fixed", sd=0.0)


numbers = st.floats(-1e6, 1e6, allow_subnormal=False)
row = st.tuples(numbers | st.just(math.nan), numbers, st.floats(0, 1) | st.just(math.nan))
rows = st.lists(row, min_size=1, max_size=9)


def saved(rows) -> dict[str, np.ndarray]:
    """Return the arrays that a run keeps, after a round trip through the file."""
    table = json.loads(json.dumps([[None if math.isnan(x) else x for x in row] for row in rows]))
    a, b, stated = np.array([[math.nan if x is None else x for x in row] for row in table]).T
    return {"a": a, "b": b, "confidence": stated, "confidence/baseline": np.full(len(a), 0.25)}


def bits(values: np.ndarray) -> bytes:
    """Every bit but the sign of a NaN, which says nothing."""
    return np.where(np.isnan(values), np.nan, values).tobytes()


TERMS = {"a": {"transform": "sigmoid", "weight": 0.3}, "b": {"standardise": "fixed", "mean": 0.1, "sd": 3.0}}


@pytest.mark.parametrize("node", NODES, ids=str)
@settings(max_examples=25)
@given(rows=rows)
def test_saved_values_give_the_same_bits_in_any_company(rows, node):
    """A response scored in its batch, alone, in another order or from the file has one score; inputs stay unchanged."""
    reward, live = graph(TERMS["a"], TERMS["b"], **node), np.array(rows)
    parts = dict(zip(("a", "b", "confidence"), live.T, strict=True))
    parts["confidence/baseline"] = np.full(len(rows), 0.25)
    before = {name: values.tobytes() for name, values in parts.items()}
    found = combine(parts, reward)
    assert {name: values.tobytes() for name, values in parts.items()} == before
    assert bits(combine(saved(rows), reward)) == bits(found)
    order = np.arange(len(rows))[::-1]
    assert bits(combine({name: values[order] for name, values in parts.items()}, reward)) == bits(found[order])
    alone = [combine({name: values[i : i + 1] for name, values in parts.items()}, reward) for i in order[::-1]]
    assert bits(np.concatenate(alone)) == bits(found)


@settings(max_examples=50)
@given(rows=rows, first=st.floats(0.1, 2), second=st.floats(-2, -0.1))
def test_a_weighted_sum_is_linear_in_its_weights(rows, first, second):
    parts = saved(rows)
    both = aggregate(parts, graph(TERMS["a"], TERMS["b"], weights={"a": first, "b": second}))
    one = first * aggregate(parts, graph(TERMS["a"], TERMS["b"], weights={"a": 1.0}))
    other = second * aggregate(parts, graph(TERMS["a"], TERMS["b"], weights={"b": 1.0}))
    assert bits(both) == bits(one + other)
