"""GSM8K and files of its form: solutions, answers, what is dropped, and an audit of demonstrations."""

from __future__ import annotations

import pytest
from rich.console import Console
from support import prompt_text, public_data
from support import write_jsonl as write

from rlhf_lab.config.registry import build
from rlhf_lab.core.errors import DataError, LabError
from rlhf_lab.data import split_rows as replies
from rlhf_lab.data.audit import NEED_TWO_REPLIES, audit, render
from rlhf_lab.data.file_settings import GSM8K
from rlhf_lab.data.gsm8k import CONTRADICTS, EMPTY_QUESTION, NO_ANSWER

ROWS = [
    {
        "question": "Ida packs 4 boxes of 6 jars and breaks 3 jars. How many are whole?",
        "answer": "She packs 4*6=<<4*6=24>>24 jars.\nShe has 24-3 = <<24-3=21>>21 whole jars.\n#### 21",
    },
    {"question": "A barn costs $1,200 more than a $50 fence. What is its price?", "answer": "50+1200\n#### $1,250."},
    {"question": "It is 3 degrees and falls by 5. How cold is it?", "answer": "3-5 = <<3-5=-2>>-2\n#### -2"},
]


def filler(count: int) -> list[dict]:
    return [{"question": f"What is {i} and {i}?", "answer": f"{i}+{i} = {2 * i}\n#### {2 * i}"} for i in range(count)]


@pytest.fixture
def load(tmp_path):
    """Rows → corpus; the test file holds ten other rows unless some are given."""

    def from_rows(rows, test=None, **settings):
        path, test_path = write(tmp_path / "mine.jsonl", rows), write(tmp_path / "held.jsonl", test or filler(10))
        return build("data", GSM8K(path=path, test_path=test_path, **settings))

    return from_rows


def test_rows_become_demonstrations_with_answers(load):
    corpus = load(ROWS)
    assert not corpus.preferences
    assert [pair.prompt for pair in corpus.train] == [prompt_text(row["question"]) for row in ROWS]
    assert corpus.train[0].chosen == "She packs 4*6=24 jars.\nShe has 24-3 = 21 whole jars.\n#### 21"
    assert {pair.rejected for pair in (*corpus.train, *corpus.test)} == {""}
    assert [corpus.answers[pair.prompt] for pair in corpus.train] == ["21", "1250", "-2"]
    assert set(corpus.answers) == {*corpus.prompts("train"), *corpus.prompts("test")}
    assert "longer wins" not in corpus.report["all"].statistics
    kept = load(ROWS, annotations="keep")
    assert kept.train[0].chosen == ROWS[0]["answer"] and kept.answers == corpus.answers
    assert kept.fingerprint != corpus.fingerprint


def test_unusable_rows_are_dropped_for_a_counted_reason(load):
    rows = [
        ROWS[0],
        {"question": "What is love?", "answer": "It depends."},
        {"question": "Which colour?", "answer": "#### red"},
        {"question": " ", "answer": "#### 1"},
        ROWS[0] | {"answer": "#### 22"},
        ROWS[0] | {"answer": "24-3\n#### 21.0"},
    ]
    report = load(rows).report["train"]
    assert report.dropped == {NO_ANSWER: 2, EMPTY_QUESTION: 1, CONTRADICTS: 1}
    assert (report.rows, report.kept) == (6, 2)
    assert report.examples[NO_ANSWER] == "mine.jsonl:2"


def test_the_answer_key_grades_replies(load):
    corpus = load(ROWS)
    prompt = corpus.train[1].prompt
    responses = ["#### 1250", "#### $1,250.00", "#### 1251", "1250", "#### 3\n#### 1250", ""]
    assert corpus.oracle.measure([prompt] * 6, responses)["correct"].tolist() == [1, 1, 0, 0, 0, 0]
    with pytest.raises(DataError, match="has no answer to 'Who"):
        corpus.oracle.measure(["Who are you?"], ["#### 1"])
    with pytest.raises(LabError, match=r"labels no pairs.*use data=arithmetic"):
        corpus.oracle.prefer([prompt], ["#### 1"], ["#### 2"], seed=0)


def test_the_audit_does_not_check_demonstrations_as_pairs(load):
    twice = [*ROWS, ROWS[0]]
    report = audit(load(twice), encode=lambda prompt, response, _: (prompt.split(), response.split()), max_length=12)
    assert set(NEED_TWO_REPLIES) <= set(report.skipped)
    for check in NEED_TWO_REPLIES:
        with pytest.raises(KeyError):
            report.count(check, "train")
    assert report.count("duplicate pair", "train") == 1
    assert report.count("longer than max_length", "train") == 4  # four replies, not eight
    assert not [name for name in report.statistics if "rejected" in name or "longer wins" in name]
    Console(quiet=True).print(render(report))


def test_the_published_files():
    names = ("gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz")
    train, test = (str(public_data(*names) / name) for name in names)
    corpus = build("data", GSM8K(path=train, test_path=test))
    assert (len(corpus.train), len(corpus.test)) == (7473, 1319)
    assert corpus.report["all"].dropped == {}
    assert len(corpus.answers) == 8792
    assert not any("<<" in pair.chosen for pair in corpus.train)
    solutions = [pair.chosen for pair in corpus.test]
    assert corpus.oracle.measure([pair.prompt for pair in corpus.test], solutions)["correct"].all()
    assert sum("," in answer or "$" in answer for answer in corpus.answers.values()) == 0
    assert sum(answer.startswith("-") for answer in corpus.answers.values()) == 5
    assert audit(corpus).count(replies.EMPTY_CHOSEN, "train") == 0
