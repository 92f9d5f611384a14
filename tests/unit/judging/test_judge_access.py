"""Access to a service: its key is shown nowhere; a missing key, model, price or library is a problem before a run."""

from __future__ import annotations

import pytest
from judge_server import JudgeServer, Said, connect, question, start_client, status
from support import checked, planned

from rlhf_lab.core.errors import ConfigError, JudgeUnavailable
from rlhf_lab.packs.judging.judges.access import (
    NO_KEY,
    is_private,
    missing_key,
    missing_model,
    read_key,
    scrub,
    without_key,
)
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible
from rlhf_lab.packs.judging.judges.context import JudgeContext, open_judge
from rlhf_lab.packs.judging.judges.pricing import Price, body_bytes, max_input_tokens, price_of, price_table
from rlhf_lab.packs.judging.judges.requests import Usage
from rlhf_lab.stages import preflight
from rlhf_lab.training.stage_spec import RewardUse

KEY = "sk-planted-0123456789abcdefXYZ"

CLIENT = """
import logging, sys, traceback
from pathlib import Path
from judge_server import connect, question
url, kind, outputs, level = sys.argv[1:]
logging.basicConfig(level=level)
try:
    for batches in (False, True):
        client = connect(url, kind, Path(outputs), api_key_env="PLANTED", batches=batches, retries=1)
        print(client.channel.settings, client.identity, client.channel.backend)
        replies = client.complete_many([question(100 * batches + i) for i in range(3)])
        print(replies)
        print(client.ledger)
    client.complete_many([question(1000)])
except Exception as error:
    traceback.print_exc()
    print(repr(error), error.__dict__, error.__cause__, error.__context__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("says_it", [False, True], ids=["loud_logs", "service_says_the_key"])
def test_a_planted_key_is_found_nowhere(server, kind, says_it, tmp_path):
    """With the logs of the SDKs and of everything else at their loudest; and with a service that says the key itself.

    What a service says is in the loudest logs of the SDKs as it is, so the two do not go together.
    """
    word = KEY if says_it else "it"
    server.answer = lambda asked: Said(f"you sent {word}, is that right?")
    refusal = status(401, f"Incorrect API key provided: {word}. Bearer {word}", X_Echo=word)
    server.always = lambda asked: refusal if "question 1000" in str(asked.body) else None
    loud = {} if says_it else {"ANTHROPIC_LOG": "debug", "OPENAI_LOG": "debug"}
    level = "INFO" if says_it else "DEBUG"
    process = start_client(CLIENT, server.url, kind, tmp_path, level, PLANTED=KEY, **loud)
    printed = "".join(process.communicate(timeout=60))
    assert f"Bearer {KEY}" in server.keys  # it was sent where it belongs
    shown = "[key]" if says_it else "it"
    assert f"you sent {shown}, is that right?" in printed and "401" in printed, printed[-2000:]
    assert "JudgeUnavailable" in printed
    assert says_it or "DEBUG:" in printed
    assert KEY not in printed
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "judges.sqlite" for file in files)
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


def test_errors_and_their_causes_hold_no_key(server, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED", KEY)
    server.always = lambda asked: status(403, f"no access for {KEY}")
    client = connect(server.url, kind, tmp_path, api_key_env="PLANTED")
    with pytest.raises(JudgeUnavailable) as caught:
        client.complete_many([question(0)])
    error: BaseException | None = caught.value
    assert "no access for [key]" in str(error)
    while error is not None:
        assert KEY not in repr(error) + str(error.__dict__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_scrubbing():
    assert scrub("key abcd1234 is wrong", "abcd1234") == "key [key] is wrong"
    assert scrub("Authorization: Bearer xyz123456 of sk-ant-api03-abc_DEF", "") == "Authorization: [key] of [key]"
    assert scrub("Incorrect API key: sk-pro********abcd", "") == "Incorrect API key: [key]"
    assert scrub("task-force and risk-free are words", NO_KEY) == "task-force and risk-free are words"
    assert without_key("a none b sk-abcdef123", NO_KEY) == "a none b sk-abcdef123"


def test_a_missing_key_names_its_variable(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    settings = Anthropic(model="claude-haiku-4-5")
    assert "ANTHROPIC_API_KEY has no key" in missing_key(settings)
    with pytest.raises(ConfigError, match=r"export ANTHROPIC_API_KEY="):
        read_key(settings)
    monkeypatch.setenv("ANTHROPIC_API_KEY", f" {KEY}\n")
    assert missing_key(settings) == "" and read_key(settings) == KEY


def test_a_server_of_ones_own_gets_no_key_of_someone_else(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    own = OpenAICompatible(model="m", base_url="http://127.0.0.1:8000/v1")
    assert missing_key(own) == "" and read_key(own) == NO_KEY
    named = OpenAICompatible(model="m", base_url="http://127.0.0.1:8000/v1", api_key_env="MINE")
    assert "MINE has no key" in missing_key(named)


@pytest.mark.parametrize(
    "setting",
    [
        {"base_url": f"https://me:{KEY}@example.com/v1"},
        {"base_url": f"https://example.com/v1?api_key={KEY}"},
        {"base_url": KEY},
        {"api_key_env": KEY},
        {"api_key_env": "gsk_secretKEY123"},
    ],
)
def test_settings_that_hold_a_key_are_refused_without_showing_it(setting):
    with pytest.raises(ConfigError) as caught:
        OpenAICompatible(model="m", **setting)
    assert KEY not in str(caught.value) and "gsk_" not in str(caught.value)


def problems_of(recipe: str, *overrides: str) -> str:
    return "\n".join(preflight.problems(planned(recipe, *overrides)))


@pytest.fixture
def asks_judge(monkeypatch):
    """Supervised learning as a stage that asks the judge."""
    from rlhf_lab.algorithms.supervised.settings import SFT

    monkeypatch.setattr(SFT, "reward_use", RewardUse(asks_judge=True))


def test_a_judge_without_key_price_or_library(monkeypatch, asks_judge):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert "the environment variable ANTHROPIC_API_KEY has no key" in problems_of("sft", "judge=anthropic")
    assert "judge.model=claude-9 has no price" in problems_of("sft", "judge=anthropic", "judge.model=claude-9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "planted-key-1234")
    assert problems_of("sft", "judge=anthropic") == ""
    local_server = ["judge=openai_compatible", "judge.base_url=http://127.0.0.1:8000/v1", "judge.model=m"]
    assert problems_of("sft", *local_server) == ""
    missing = ("anthropic", "openai")
    monkeypatch.setattr(
        "rlhf_lab.packs.judging.judges.preflight.find_spec", lambda name: None if name in missing else object()
    )
    assert "judge=anthropic needs a library" in problems_of("sft", "judge=anthropic")
    assert "pip install 'rlhf_lab[judge]'" in problems_of("sft", *local_server)


def test_a_local_judge_that_is_no_model(asks_judge, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "judge.path=" in problems_of("sft", "judge=local", f"judge.path={tmp_path / 'empty'}")


def test_a_judge_that_nobody_asks_needs_nothing(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert problems_of("sft", "judge=anthropic") == ""


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


def agents_of(server: JudgeServer, outputs, *overrides: str):
    """A benchmark of agents that a recipe would have speak through a policy of its own."""
    llm = ("agent.llm=openai_compatible", f"agent.service.base_url={server.openai_url}", "agent=zero_shot")
    return planned("agent_bench", *llm, f"outputs={outputs}", *overrides)


def test_the_refusal_says_what_the_server_has(server, tmp_path):
    server.models = ["qwen-7b", "llama-8b"]
    problem = f"agent.service.model is not set; {server.openai_url} serves qwen-7b, llama-8b: write agent.service.model"
    assert preflight.problems(agents_of(server, tmp_path)) == [f"{problem}=qwen-7b"]
    assert preflight.problems(agents_of(server, tmp_path, "agent.service.model=qwen-7b")) == []
    server.models = [f"m{number}" for number in range(7)]
    assert "serves m0, m1, m2, m3, m4, …: write judge.model=m0" in missing_model(
        OpenAICompatible(base_url=server.openai_url)
    )


@pytest.mark.parametrize("answer", [status(404), status(200, "no list"), None])
def test_a_server_that_lists_nothing_is_named(server, answer):
    server.models = []
    server.get_faults = [answer]
    problem = missing_model(OpenAICompatible(base_url=server.openai_url))
    assert problem.startswith(f"judge.model is not set; write the model's name at {server.openai_url}")


def test_no_list_is_asked_for_where_a_key_would_be_needed_or_nothing_may_be_sent(server, monkeypatch):
    requested = []
    monkeypatch.setattr(
        "rlhf_lab.packs.judging.judges.access.served_models", lambda settings: requested.append(settings) or []
    )
    for settings in (Anthropic(), OpenAICompatible(), OpenAICompatible(base_url=server.openai_url, api_key_env="KEY")):
        assert "judge.model is not set" in missing_model(settings)
    assert "judge.model is not set" in missing_model(OpenAICompatible(base_url=server.openai_url), may_ask=False)
    assert requested == []


def test_no_service_is_opened_without_a_name(server, tmp_path):
    settings = checked("sft", "judge=openai_compatible", f"judge.base_url={server.openai_url}").judge
    assert settings.model == ""
    with pytest.raises(ConfigError, match=r"judge\.model is not set"):
        open_judge(settings, JudgeContext("run", tmp_path))
    assert server.asked == []


def test_agents_of_a_service_need_no_policy(server, tmp_path):
    """The recipe names a policy, which is trained on demand: for agents that speak through it, and for no others."""
    server.answer = lambda asked: Said("Answer: x")
    assert [stage.recipe for stage in agents_of(server, tmp_path, "agent.service.model=m").upstream()] == [
        "agent_bench"
    ]
    scripted = planned("agent_bench", "agent=[oracle,always_refuse]", f"outputs={tmp_path}")
    assert scripted.needs == {}
    local = planned("agent_bench", f"outputs={tmp_path}")
    assert list(local.needs) == ["policy"]
    for recipe in ("gaia", "code_bench"):
        assert planned(recipe, "agent.llm=anthropic", f"outputs={tmp_path}").needs == {}
