"""The key of a service is sent to the service, and is nowhere else: not in files, logs, messages or answers."""

from __future__ import annotations

import pytest
from judge_server import Said, connect, question, start_client, status

from rlhf_lab.core.errors import ConfigError, JudgeUnavailable
from rlhf_lab.packs.judging.judges.access import NO_KEY, missing_key, read_key, scrub, without_key
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible

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
