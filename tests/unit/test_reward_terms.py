"""Terms that read a response without a model: calculator, conciseness, and the request to a service."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support import checked

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.rewards.external.remote import references
from rlhf_lab.rewards.rules.calculator import equations, with_results
from rlhf_lab.rewards.rules.settings import Calculator, Programmatic

RUN = SimpleNamespace(config=SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=256)))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("5 + 3 = 9\n9 * 2 = 18\n#### 18", "5 + 3 = 9 [8]\n9 * 2 = 18 [18]\n#### 18"),
        ("so 48/2 = <<48/2=24>>24 clips.\n", "so 48/2 = <<48/2=24>>24 clips. [24]\n"),
        ("2 + 3 = 5 + 1 = 7", "2 + 3 = 5 + 1 = 7 [5, 6]"),
        ("10 / 3 = 3.3", "10 / 3 = 3.3 [3.33]"),
        ("7 / 0 = 0\n\nno equation", "7 / 0 = 0\n\nno equation"),
        (f"{'9' * 200} * 1 = 0", f"{'9' * 200} * 1 = 0"),  # too long for the calculator
        ("", ""),
    ],
)
def test_the_results_of_the_calculator_are_appended_to_the_lines(text, read):
    assert with_results(text) == read


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("5 + 3 = 8\n8 * 2 = 17\n#### 17", [True, False]),
        ("Natalia sold 48/2 = <<48/2=24>>24 clips in May.", [True]),
        ("(2 + 3) × 4 = 20 = 10 + 10", [True, True]),
        ("2 + 3 = 5 + 1 = 6", [False, True]),
        ("10 / 3 = 3.33 and 10 / 3 = 3", [True, False]),
        ("- 3 + 4 = 7\n* 2 * 2 = 4", [True, True]),
        ("7 / 0 = 0", []),
        ("__import__('os').system('x') = 1 + 1", []),
        ("12/60 = 20%, 10/4 = 2 R 2, 4 + 4 = 2^3, 3^2 + 1 = 10, sqrt(16) + 2 + 1 = 7", []),  # parts of expressions
        ("x - 5 - 3 = 12 and f(3) = 3 + 2 = 5", [True]),
        (r"2 \times 3 + 1 = 7, \sqrt 9 + 2 = 5, 6 \div 2 + 1 = 4, total is -5 + 3 = -2", [True, True, True]),
        ("", []),
    ],
)
def test_equations_are_found_and_computed(text, holds):
    assert list(equations(text)) == holds


def test_the_calculator_scores_the_share_and_abstains_without_an_equation():
    texts = ["5 + 3 = 8 and 1 + 1 = 3", "no sums here"]
    batch = registry.build("reward", Calculator(), RUN)(["p"] * 2, texts)
    assert batch.total_N[0] == 0.5 and np.isnan(batch.total_N[1])
    assert batch.parts["equations"].tolist() == [2, 0]
    assert registry.build("reward", Calculator(no_equation=0.0), RUN)(["p"] * 2, texts).total_N[1] == 0


def test_a_hollow_opening_is_one_in_whole_words():
    openings = ["Certainly!", "\n\nSure, here", "I’d be happy to", "“Great question!”", "Surely not.", "Courses"]
    assert [Programmatic().affirms(text) for text in openings] == [True, True, True, True, False, False]


def test_conciseness_and_the_rule_are_two_terms_of_one_kind():
    """150 and 300 words at a limit of 256 tokens; conciseness does not mind a hollow opening."""
    terms = checked("ppo", "reward=[bt,programmatic,conciseness]").reward.terms
    assert [registry.kind_of("reward", term) for term in terms.values()] == ["bt", "programmatic", "programmatic"]
    texts = ["Certainly! short", "word " * 225]
    found = {name: registry.build("reward", terms[name], RUN)(["p"] * 2, texts).total_N for name in list(terms)[1:]}
    assert found["programmatic"].tolist() == [0, 0] and found["conciseness"] == pytest.approx([1, 0.5])


def test_thresholds_that_cross_are_refused_once_the_limit_is_known():
    with pytest.raises(ConfigError, match="falls from short_words=150 to long_words=100"):
        registry.build("reward", Programmatic(mode="continuous", long_words=100.0), RUN)


def test_a_service_is_told_the_datas_own_answer():
    pairs = [Pair("q", "first", "x"), Pair("q", "second", "x"), Pair("r", "reply", "x")]
    corpus = Corpus("c", pairs[:2], pairs[2:], "f", answers={"r": "42"})
    assert references(corpus) == {"q": "first", "r": "42"}
