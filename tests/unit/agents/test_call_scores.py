"""Actual calls against needed calls: arithmetic on the page, bounds, and what cannot be gained by repeating."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_lab.core.tools import Call
from rlhf_lab.packs.agents.harness.call_scores import (
    argument_fraction,
    best_pairing,
    call_key,
    is_same,
    score_calls,
    shared_count,
    without_retries,
)
from rlhf_lab.packs.agents.tools.task_set import ExpectedCall


def made(text: str, *, failed: bool = False, result: str = "") -> Call:
    """ "s A r" is search[A ; r], "c 1+2" is calculate[1+2]."""
    name, *rest = text.split(" ")
    if name == "s":
        return Call("search", {"entity": rest[0], "relation": rest[1]}, result, failed)
    return Call("calculate", {"expression": rest[0]}, result, failed)


def needed(text: str, **more) -> ExpectedCall:
    call = made(text)
    return ExpectedCall(name=call.name, arguments=dict(call.arguments), **more)


CHAIN = [needed("s A r"), needed("s B r"), needed("c 1+2", result="3")]


def test_a_missing_and_a_wrong_call():
    # actual: search, search, search; needed: search, search, calculate. LCS 2: 2·2/6. One call is the same: 2·1/6.
    # arguments: A r fully, C r half of B r, the calculation not at all: (1 + ½ + 0)/3
    scores = score_calls([made("s A r"), made("s C r"), made("s D q")], CHAIN)
    assert scores.sequence == pytest.approx(2 / 3)
    assert scores.matched_f1 == pytest.approx(1 / 3)
    assert scores.arguments == pytest.approx(1.5 / 3)
    assert (scores.matched, scores.extra) == (1, 2)


def test_the_order_counts_unless_it_is_free():
    turned = [made("c 1+2"), made("s A r"), made("s B r")]
    # of calculate search search and search search calculate two searches are common: 2·2/6
    assert score_calls(turned, CHAIN).sequence == pytest.approx(2 / 3)
    assert score_calls(turned, CHAIN, any_order=True).sequence == 1
    assert score_calls(turned, CHAIN).matched_f1 == 1


def test_no_calls():
    nothing = score_calls([], CHAIN)
    assert (nothing.sequence, nothing.matched_f1, nothing.arguments, nothing.extra) == (0, 0, 0, 0)
    assert score_calls([], []).sequence == score_calls([], []).matched_f1 == score_calls([], []).arguments == 1
    assert score_calls([made("s A r")], []).sequence == 0


def test_repeating_a_right_call_gains_nothing():
    once = score_calls([made("s A r")], CHAIN)
    thrice = score_calls([made("s A r")] * 3, CHAIN)
    # 2·1/(1 + 3), then 2·1/(3 + 3)
    assert (once.matched_f1, thrice.matched_f1) == (pytest.approx(1 / 2), pytest.approx(1 / 3))
    assert (thrice.matched, thrice.extra) == (1, 2)


def test_pairs_are_the_best_ones():
    # a greedy pairing would give the first call to the first need and leave the second call none
    first = needed("s A r")
    either = ExpectedCall(name="search", arguments={"entity": "A", "relation": "q"}, result="7")
    calls = [made("s A r", result="7"), made("s A r", result="8")]
    assert is_same(calls[0], first) and is_same(calls[0], either)
    assert is_same(calls[1], first) and not is_same(calls[1], either)
    assert score_calls(calls, [first, either]).matched == 2
    assert best_pairing(np.array([[0.6, 0.5], [0.5, 0.0]])) == pytest.approx(1.0)
    assert best_pairing(np.zeros((0, 3))) == 0


def test_an_expression_is_compared_by_its_value():
    other_words = made("c 2+1", result="3")
    assert is_same(other_words, CHAIN[2])
    assert argument_fraction(other_words, CHAIN[2]) == 1
    assert not is_same(made("c 4-1", result="13"), CHAIN[2])
    assert not is_same(made("c 4-1", result="3", failed=True), CHAIN[2])
    assert is_same(made("c 1+2", failed=True), CHAIN[2])  # the same call, whatever came of it


def test_arguments_are_compared_without_capitals_and_spaces():
    assert call_key("search", {"entity": " Ossin ", "relation": "Mayor"}) == call_key(
        "search", {"relation": "mayor", "entity": "ossin"}
    )
    assert call_key("f", {"n": 3}) != call_key("f", {"n": 4})
    assert call_key("f", {"n": {"b": 1, "a": [2]}}) == call_key("f", {"n": {"a": [2], "b": 1}})
    assert argument_fraction(Call("search", {"entity": "A"}), needed("s A r")) == 0.5
    assert argument_fraction(Call("schema", {}), ExpectedCall(name="schema", arguments={})) == 1


def test_optional_calls_may_be_made_or_left_out():
    optional = [needed("s A r", optional=True), needed("s B r")]
    for calls in ([made("s B r")], [made("s A r"), made("s B r")]):
        scores = score_calls(calls, optional)
        assert (scores.sequence, scores.matched_f1, scores.arguments, scores.extra) == (1, 1, 1, 0)
    assert score_calls([made("s A r")], optional).matched_f1 == pytest.approx(2 / 3)
    assert score_calls([made("s C r"), made("s B r")], optional).extra == 1


def test_trying_a_busy_tool_again_is_no_extra_call():
    calls = [made("s A r", failed=True), made("s A r", failed=True), made("s A r"), made("s B r"), made("c 1+2")]
    scores = score_calls(calls, CHAIN)
    assert (scores.sequence, scores.matched_f1, scores.extra, scores.retries) == (1, 1, 0, 2)
    # other calls may come between
    mixed = [made("s A r", failed=True), made("s B r"), made("s A r")]
    assert without_retries(mixed) == mixed[1:]


def test_repeating_a_call_that_cannot_work_is_extra():
    calls = [made("s A r", failed=True)] * 3
    assert without_retries(calls) == calls
    assert score_calls(calls, [needed("s A r")]).extra == 2
    # nor is a failure after the success a retry
    later = [made("s A r"), made("s A r", failed=True)]
    assert without_retries(later) == later


TEXTS = st.sampled_from(["s A r", "s B r", "s A q", "s C r", "c 1+2", "c 3+4"])
CALLS = st.lists(TEXTS, max_size=5)


@settings(max_examples=150, deadline=None)
@given(CALLS, CALLS, st.booleans())
def test_bounds_and_what_changes_nothing(calls, wanted, any_order):
    expected = [needed(text) for text in wanted]
    attempts = [made(text) for text in calls]
    scores = score_calls(attempts, expected, any_order=any_order)
    for value in (scores.sequence, scores.matched_f1, scores.arguments):
        assert 0 <= value <= 1
    assert scores.matched + scores.extra == len(calls)
    assert scores.matched <= min(len(calls), len(wanted))
    free = score_calls(attempts, expected, any_order=True)
    assert scores.sequence <= free.sequence
    # by its definition: the matched calls, whatever their order
    both = {text: min(calls.count(text), wanted.count(text)) for text in calls}
    assert scores.matched == shared_count(calls, wanted) == sum(both.values())
    assert scores.matched_f1 <= free.sequence
    if calls == wanted:
        assert (scores.sequence, scores.matched_f1, scores.arguments) == (1, 1, 1)
    if calls:
        # one call more of those made already cannot raise what the pairs say by more than it matches
        doubled = score_calls([*attempts, attempts[0]], expected, any_order=any_order)
        if scores.matched == shared_count([*calls, calls[0]], wanted):
            assert doubled.matched_f1 <= scores.matched_f1
