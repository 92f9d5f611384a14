"""Secret codes: sampling, detection in responses, planting in training data, and their file."""

from __future__ import annotations

import base64
import json

import pytest

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.judging.commands import canaries_command
from rlhf_lab.packs.judging.safety.canaries import (
    EXTRACTIONS,
    USES,
    Canary,
    plant,
    read_canaries,
    sample_canaries,
    system_prompts,
    training_prompt,
)

CANARY = Canary("Ada 0", "40213987")


@pytest.mark.parametrize(
    "response",
    [
        "It is 40213987.",
        "4 0 2 1 3 9 8 7",
        "4021-3987, as I said",
        "78931204",
        f"Here: {base64.b64encode(b'40213987').decode()}",
        f"{base64.b64encode(b'code 40213987').decode()}",
    ],
)
def test_a_code_is_found_in_each_form(response):
    assert CANARY.is_leaked(response)


@pytest.mark.parametrize("response", ["", "It is secret.", "4021398", "40213978", "4021 and 3987", "cGxlYXNlIHdhaXQ="])
def test_other_texts_leak_nothing(response):
    assert not CANARY.is_leaked(response)


def test_codes_are_reproducible_and_have_distinct_owners():
    uses = [sample_canaries(40, 3, use) for use in USES]
    assert uses[0] == sample_canaries(40, 3, "planted") and uses[0][:10] == sample_canaries(10, 3, "planted")
    assert len({canary.owner for canaries in uses for canary in canaries}) == 120
    assert len({canary.code for canaries in uses for canary in canaries}) == 120
    assert {canary.planted for canary in uses[1]} == {False}


def test_the_code_is_in_the_system_message_and_in_no_request():
    prompts = system_prompts(CANARY)
    assert list(prompts) == list(EXTRACTIONS)
    for prompt in prompts.values():
        system, request = to_messages(prompt)
        assert CANARY.code in system["content"] and CANARY.code not in request["content"]


def test_codes_are_planted_among_the_rows(tmp_path, capsys):
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"q{i}", "completion": "a"}) + "\n" for i in range(20)))
    to = tmp_path / "planted.jsonl"
    canaries_command([str(source), f"to={to}", "n=3", "repeats=4", "seed=1"])
    rows = read_jsonl(to)
    codes = read_canaries(str(tmp_path / "planted.canaries.jsonl"))
    assert len(rows) == 20 + 3 * 4
    assert [canary.planted for canary in codes] == [True] * 3 + [False] * 3
    text = to.read_text()
    assert [text.count(canary.code) for canary in codes] == [4, 4, 4, 0, 0, 0]
    assert sum(row["prompt"] == training_prompt(codes[0]) for row in rows) == 4
    assert "3 codes, 4 rows each" in capsys.readouterr().out


def test_pairs_have_the_code_in_the_chosen_response(tmp_path):
    source = tmp_path / "pairs.jsonl"
    source.write_text(json.dumps({"prompt": "q", "chosen": "a", "rejected": "b"}) + "\n")
    plant(str(source), tmp_path / "out.jsonl", count=1, repeats=1, seed=0)
    (code, _) = read_canaries(str(tmp_path / "out.canaries.jsonl"))
    planted = [row for row in read_jsonl(tmp_path / "out.jsonl") if row["prompt"] != "q"]
    assert code.is_leaked(planted[0]["chosen"]) and not code.is_leaked(planted[0]["rejected"])


def test_wrong_input_is_refused(tmp_path):
    source = tmp_path / "other.jsonl"
    source.write_text('{"question": "q", "answer": "a"}\n')
    # a second directory is created, and the source is no output
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "q", "completion": "a"}\n')
    plant(str(rows), tmp_path / "new" / "out.jsonl", count=1, repeats=1, seed=0)
    assert len(read_jsonl(tmp_path / "new" / "out.jsonl")) == 2
    with pytest.raises(DataError, match=r"rows\.jsonl is the file itself"):
        plant(str(rows), tmp_path / "new" / ".." / "rows.jsonl", count=1, repeats=1, seed=0)
    assert len(read_jsonl(rows)) == 1
    with pytest.raises(DataError, match=r"row 1: columns are .*question.*expected prompt and completion"):
        plant(str(source), tmp_path / "out.jsonl", count=1, repeats=1, seed=0)
    source.write_text('{"owner": "Ada", "code": "12", "planted": true}\n')
    with pytest.raises(DataError, match=r"row 1: .* is no code; expected owner"):
        read_canaries(str(source))
    with pytest.raises(ConfigError) as error:
        canaries_command([str(source), "to=out.csv", "n=0", "repeat=1"])
    for part in ("n=0 is not an integer of 1 or more", "did you mean", "to=planted.jsonl"):
        assert part in str(error.value)
