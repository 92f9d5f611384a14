"""Costs of requests: the price table, the maximum cost of a request, and what is known of unknown models."""

from __future__ import annotations

import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.access import is_private
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible
from rlhf_lab.packs.judging.judges.pricing import Price, body_bytes, max_input_tokens, price_of, price_table
from rlhf_lab.packs.judging.judges.requests import Usage


def test_the_arithmetic_of_a_bill():
    # Claude Haiku 4.5: $1 in, $1.25 into the cache, $0.10 from the cache, $5 out
    price = price_of(Anthropic(model="claude-haiku-4-5"))
    usage = Usage(1_000_000, 2_000_000, 3_000_000, 400_000)
    assert price.cost(usage) == pytest.approx(1.0 + 2 * 1.25 + 3 * 0.10 + 0.4 * 5)
    assert price.cost(usage, batch=True) == pytest.approx(price.cost(usage) / 2)
    assert price.source == f"prices.toml {price_table()['version']}"


def test_long_prompts_cost_more_altogether():
    # Claude Haiku 5.5 above 100,000 tokens: five times as much, what is written included
    price = price_of(Anthropic(model="claude-haiku-5-5"))
    assert price.cost(Usage(100_000, 0, 0, 1000)) == pytest.approx(0.1 * 0.10 + 0.001 * 0.5)
    assert price.cost(Usage(60_000, 0, 40_001, 1000)) == pytest.approx(
        5 * (0.06 * 0.10 + 0.040001 * 0.01 + 0.001 * 0.5)
    )


@pytest.mark.parametrize("model", sorted(price_table()["models"]))
def test_no_usage_costs_more_than_at_most(model):
    price = price_of(OpenAICompatible(model=model))
    for tokens in (10, 99_999, 150_000, 300_000):
        at_most = price.at_most(tokens, 500)
        for usage in (Usage(tokens, 0, 0, 500), Usage(0, tokens, 0, 500), Usage(0, 0, tokens, 500)):
            assert price.cost(usage) <= at_most * (1 + 1e-12)


@pytest.mark.parametrize("model", ["claude-haiku-4-5-20251001", "gpt-4.1-mini-2025-04-14"])
def test_dated_versions_cost_what_their_model_does(model):
    assert price_of(OpenAICompatible(model=model)).source.startswith("prices.toml")


@pytest.mark.parametrize("model", ["claude-haiku-9", "gpt-4.1-mini-audio", "claude-fable-5-2"])
def test_unknown_models_need_a_price(model):
    with pytest.raises(ConfigError, match=r"judge\.input_usd and judge\.output_usd"):
        price_of(Anthropic(model=model))
    own = price_of(Anthropic(model=model, input_usd=2.0, output_usd=3.0))
    assert own == Price(2.0, 2.0, 2.0, 3.0, source="judge.input_usd, judge.output_usd")
    assert own.at_most(1000, 100) == pytest.approx((1000 * 2 + 100 * 3) / 1e6)
    assert price_of(Anthropic(model=model, input_usd=0.0, output_usd=0.0)).free


@pytest.mark.parametrize(
    "url, is_free",
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://localhost:11434/v1", True),
        ("http://[::1]:80/v1", True),
        ("http://10.1.2.3/v1", True),
        ("http://192.168.0.7:1234/v1", True),
        ("http://vllm:8000/v1", True),
        ("https://api.example.com/v1", False),
        ("https://8.8.8.8/v1", False),
    ],
)
def test_servers_of_ones_own_charge_nothing(url, is_free):
    settings = OpenAICompatible(model="my-model", base_url=url)
    assert is_private(settings) == is_free
    if is_free:
        assert price_of(settings).free
        # a gateway to a model that is charged for may stand there too
        assert not price_of(OpenAICompatible(model="gpt-4o", base_url=url)).free
    else:
        with pytest.raises(ConfigError):
            price_of(settings)


def test_a_request_has_no_more_tokens_than_bytes():
    body = {"messages": [{"role": "user", "content": "日本 🎉"}]}
    assert body_bytes(body) >= len("日本 🎉".encode())
    assert max_input_tokens(body, schema=False) > body_bytes(body)
    assert max_input_tokens(body, schema=True) > max_input_tokens(body, schema=False)
