"""`rlhf_lab.core.redaction`: secrets by their form, name or environment variable. All are made up here, from pieces."""

from __future__ import annotations

import json
import os
import sys

import pytest

from rlhf_lab.core import invocation
from rlhf_lab.core.redaction import HIDDEN, redacted, redacted_arguments, secrets_in

B64 = "Ab3/" * 10
HEX = "0123456789abcdef" * 4
FORMS = {
    "a Hugging Face token": "hf" + "_" + "aB3" * 12,
    "an API key": "sk" + "-proj-" + "aB3_" * 8,
    "a key of a service": "gsk" + "_" + "aB3x" * 13,
    "an AWS key": "AKIA" + "ABCD" * 4,
    "a Google key": "AIza" + "aB3-_" * 7,
    "a W&B key": "wandb" + "_v1_" + "aB3" * 10,
    "a JSON web token": ".".join(("ey" + "Jhbrj1NiIs", "ey" + "Jzdk1234Ii", "s1gn-ature_")),
    "an Azure key": "AccountKey" + "=" + "aB3/" * 21 + "aB" + "==",
    "a Discord token or webhook": "https://discord" + ".com/api/webhooks/" + "12345678/" + "aB3-_" * 8,
    "a GitHub token": "ghp" + "_" + "aB3x" * 9,
    "a Slack token or webhook": "xoxb" + "-" + "1234567890-ab",
    "a Replicate token": "r8" + "_" + "aB3" * 12 + "x",
    "a SendGrid key": "SG" + "." + "aB3x" * 5 + "ab" + "." + "aB3_" * 10 + "abc",
    "a Telegram token": "123456789" + ":AA" + "aB3-_" * 6 + "abc",
    "a Twilio key": "SK" + HEX[:32],
}
IN_CONTEXT = {
    "a W&B key": "WANDB_API" + "_KEY: " + HEX[:40],
    "an AWS secret key": "aws_secret_access" + "_key = " + B64,
    "an Azure key": "AZURE_OPENAI_API" + "_KEY=" + HEX[:32],
    "a private key": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "a URL with a password": "https://me" + ":pass@host/x",
    "a header with a token": "Bearer " + "aB3x" * 5,
}
MORE = [
    ("an Azure key", "aB3" + "8Q~" + "aB3-" * 8 + "x"),
    ("an Azure key", "https://x.blob.core.windows.net/c?sv=1&sig" + "=" + "aB3%" * 12),
    ("an Azure key", "aB3x" * 13 + "JQQJ99" + "aB3x" * 6 + "aB"),
    ("a Discord token or webhook", "M" + "aB3x" * 6 + "." + "aB3x_-" + "." + "aB3x" * 7),
    ("a Google key", "ya29" + "." + "aB3x" * 10),
    ("an API key", "sk" + "-ant-api03-" + "aB3x" * 10),
    ("a Twilio key", "AC" + HEX[:32]),
]


@pytest.mark.parametrize(("kind", "text"), [*FORMS.items(), *IN_CONTEXT.items(), *MORE])
def test_forms_are_known_and_hidden(kind: str, text: str) -> None:
    sentence = f"before {text} behind"
    assert kind in list(secrets_in(sentence))
    hidden = redacted({"question": sentence})["question"]
    assert HIDDEN in hidden and text not in hidden and not list(secrets_in(hidden))
    assert hidden.startswith("before ")


KEY = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\n" + "aB3/" * 16 + "\n" + "xY9+" * 10 + "\n"
END = "-----END " + "OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize("escape", [str, json.dumps, lambda text: json.dumps(json.dumps(text))])
def test_the_whole_block_of_a_private_key_is_hidden(escape) -> None:
    hidden = redacted(escape(f"before {KEY}{END} behind"))
    assert "before " in hidden and " behind" in hidden
    assert HIDDEN in hidden and "aB3" not in hidden and "xY9" not in hidden and "END" not in hidden


@pytest.mark.parametrize("cut", range(40, len(KEY), 11))
def test_a_private_key_that_was_cut_is_hidden_to_its_end(cut: int) -> None:
    assert redacted(f"before {KEY[:cut]}") == f"before {HIDDEN}"


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    "escape",
    [
        lambda text: json.dumps(f"a\n{text}"),
        lambda text: json.dumps(json.dumps(f"a\n{text}")),
        lambda text: text.replace("-", "\\u002d").replace("_", "\\x5f").replace(".", "\\u002E"),
    ],
    ids=["newline", "twice", "letters"],
)
def test_a_secret_behind_escapes_is_known_and_hidden(text: str, escape) -> None:
    written = escape(text)
    assert list(secrets_in(written))
    assert text not in redacted(written) and not list(secrets_in(redacted(written)))


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["curl", "-H", "Authorization: Bearer TOK"], ["curl", "-H", f"Authorization: Bearer {HIDDEN}"]),
        (['curl -H "Authorization: Basic TOK=" u'], [f'curl -H "Authorization: Basic {HIDDEN}" u']),
        (["-H", "authorization:TOK"], ["-H", f"authorization:{HIDDEN}"]),
        (["-H", "X-Api-Key: TOK"], ["-H", f"X-Api-Key: {HIDDEN}"]),
        (["send", "--api-key", "TOK", "--to", "me"], ["send", "--api-key", HIDDEN, "--to", "me"]),
        (["send", "--token=TOK"], ["send", f"--token={HIDDEN}"]),
        (["--token", "--dry-run"], ["--token", "--dry-run"]),
        (["unexpected token: 5"], ["unexpected token: 5"]),
    ],
)
def test_headers_and_options_of_a_command(typed: list[str], kept: list[str]) -> None:
    """As words of a command line, and as a list in the settings."""
    assert redacted_arguments(typed) == kept
    assert redacted({"command": typed}) == {"command": kept}


RANDOM = "0f7c9e21b4a83d56e0c1f29a7b3d84e65c10fa92"
MIXED = "wJ4lrXUt9nFEMI7K+MDENGb/PxRfiCYz8XAMPL3k"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"my key is {RANDOM}", "what may be a W&B key"),
        (f'{{"x": "{MIXED}"}}', "what may be an AWS secret key"),
        (f"commit {RANDOM}", ""),
        (f"| code | commit `{RANDOM}` |", ""),
        (f'"_commit_hash": "{RANDOM}"', ""),
        (f'"revision": "{RANDOM}"', ""),
        (f"https://host/org/name/resolve/{RANDOM}/config.json", ""),
        (f"org/name@{RANDOM}", ""),
        (f"generated from commit\n[`{RANDOM}`]", ""),
        ("a digest of 64 digits " + (RANDOM * 2)[:64], ""),
        ("a key such as " + "01" * 20, ""),
        ("tests/unit/judging/testJudge2Client3Store4", ""),
        ("TheQuickBrownFox12JumpsOver34TheLazyDog5", ""),
        ("0123456789abcdefABCDEF/+" + "a" * 16, ""),
    ],
)
def test_what_only_a_person_can_tell_is_reported_and_never_replaced(text: str, kind: str) -> None:
    """A W&B key of the old kind looks like the digest of a commit. The lab reads such digests again."""
    assert list(secrets_in(text)) == ([kind] if kind else [])
    assert redacted(text) == text


@pytest.mark.parametrize(("kind", "text"), FORMS.items())
def test_forms_are_known_in_vocabularies(kind: str, text: str) -> None:
    assert kind in list(secrets_in(f'{{"vocab": {{"{text}": 1}}}}', is_vocabulary=True))


@pytest.mark.parametrize(
    "text",
    [
        "commit " + HEX[:40],
        "sha256 " + HEX,
        '{"aws": 1, "' + "/" * 40 + '": 2, "sk-' + "-" * 30 + '": 3, "http://": 4, "a@b": 5}',
        "max_tokens=12 key of the desk-to-desk-to-desk-to-desk talk",
        "https://host/x@v1 and eyJ alone, hf_hub_download",
    ],
)
def test_what_looks_a_little_like_a_secret(text: str) -> None:
    assert not list(secrets_in(text, is_vocabulary=True))
    if not text.startswith("{"):
        assert not list(secrets_in(text)) and redacted(text) == text


def test_values_of_secret_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The value of `$MY_TOKEN` in a command is hidden, in every form."""
    value = "correct-horse" + "-battery"
    monkeypatch.setenv("MY_TOKEN", value)
    monkeypatch.setenv("SHORT_KEY", "true")
    assert redacted([f"x={value}", "true"]) == [f"x={HIDDEN}", "true"]
    assert list(secrets_in(f"a {value}")) == ["the value of the environment variable MY_TOKEN"]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("judge.api_key=s3cret", f"judge.api_key={HIDDEN}"),
        ("++reward.hfToken=s3cret", f"++reward.hfToken={HIDDEN}"),
        ("reward={url: x, api_key: s3cret}", f"reward={{url: x, api_key: {HIDDEN}}}"),
        ("reward.url=https://me:s3cret@host/x", f"reward.url=https://{HIDDEN}@host/x"),
        ("reward.url=https://host/x?token=s3cret", f"reward.url=https://host/x?token={HIDDEN}"),
        ("judge.api_key_env=MY_VARIABLE", "judge.api_key_env=MY_VARIABLE"),
        ("algorithm.micro_batch_tokens=512,1024", "algorithm.micro_batch_tokens=512,1024"),
        ("data.names={prompt: question}", "data.names={prompt: question}"),
        ("+recipe=dpo", "+recipe=dpo"),
        ("--dry-run", "--dry-run"),
    ],
)
def test_words_of_a_command(typed: str, kept: str) -> None:
    assert redacted_arguments([typed]) == [kept]


def test_the_command_that_runs_record_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    key = FORMS["an API key"]
    monkeypatch.setenv(invocation.COMMAND, "")
    monkeypatch.setattr(sys, "argv", ["rlhf-lab", "+recipe=sft", f"judge.api_key_env={key}", "seed=3"])
    invocation.remember()
    assert invocation.command_line() == f"rlhf-lab +recipe=sft 'judge.api_key_env={HIDDEN}' seed=3"
    assert key not in os.environ[invocation.COMMAND]
