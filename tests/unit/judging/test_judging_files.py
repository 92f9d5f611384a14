"""Two sources of responses, their matching, and the file of judgements from which an interrupted attempt resumes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_judge import FakeJudge, says
from synthetic_judgements import write_rows

from rlhf_lab.core.errors import ConfigError, DataError, JudgeUnavailable
from rlhf_lab.core.files import read_jsonl
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.judging.judges.command import read_words, run
from rlhf_lab.packs.judging.judges.judgement import Judging, names_of
from rlhf_lab.packs.judging.judges.judging import (
    Metered,
    judge_items,
    number_items,
    summarise,
    summarise_grades,
)
from rlhf_lab.packs.judging.judges.pairwise import Candidates
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Usage
from rlhf_lab.packs.judging.judges.rubric import load_rubric
from rlhf_lab.packs.judging.judges.sources import match, read_source

HI = "\n\nHuman: hi\n\nAssistant:"


def write_alpaca(path, generator: str, outputs: dict[str, str]):
    rows = [
        {"dataset": "koala", "instruction": instruction, "output": output, "generator": generator}
        for instruction, output in outputs.items()
    ]
    path.write_text(json.dumps(rows, indent=2))
    return path


def test_alpaca_evals_model_outputs(tmp_path):
    ours = read_source(write_alpaca(tmp_path / "model_outputs.json", "ours", {"Who?": "I.", "Why?": "So."}))
    theirs = read_source(write_alpaca(tmp_path / "reference.json", "gpt4", {"Why?": "Because.", "Who?": "You."}))
    assert [(answer.prompt, answer.response) for answer in ours.answers] == [
        ("\n\nHuman: Who?\n\nAssistant:", "I."),
        ("\n\nHuman: Why?\n\nAssistant:", "So."),
    ]
    assert names_of([ours, theirs]) == ("ours", "gpt4")
    assert [(a.response, b.response) for a, b in match(ours, theirs).pairs] == [("I.", "You."), ("So.", "Because.")]
    # Alpaca's data have a part of the instruction in a column of its own
    rows = [{"instruction": "Sum up.", "input": text, "output": "o"} for text in ("one", "two", "", None)]
    (tmp_path / "alpaca.json").write_text(json.dumps(rows))
    prompts = [answer.prompt for answer in read_source(tmp_path / "alpaca.json").answers]
    asked = ("Sum up.\n\none", "Sum up.\n\ntwo", "Sum up.", "Sum up.")
    assert prompts == [f"\n\nHuman: {text}\n\nAssistant:" for text in asked]
    # without one name for all rows, the file names the policy
    (tmp_path / "mixed.json").write_text('[{"instruction": "a", "output": "b", "generator": 3}]')
    assert read_source(tmp_path / "mixed.json").author == "mixed"

    rows = '[{"instruction": "a", "output": "b"}, {"instruction": "a"}, {"instruction": "a", "output": 3}]'
    (tmp_path / "wrong.json").write_text(rows)
    expected = r"row 2: the row has the columns 'instruction'; expected .*\n.*row 3: column 'output' is a number 3"
    with pytest.raises(DataError, match=expected):
        read_source(tmp_path / "wrong.json")


def run_folder(path, responses_of):
    """A run directory: policy → responses to "q0", "q1", …, two to each."""
    path.mkdir()
    rows = [
        {"policy": policy, "prompt_id": i // 2, "sample_id": i % 2, "prompt": f"q{i // 2}", "response": response}
        for policy, responses in responses_of.items()
        for i, response in enumerate(responses)
    ]
    return write_rows(path / "evaluation.jsonl", rows).parent


# Reading


def test_rows_of_a_file_in_every_form(tmp_path):
    user = {"role": "user", "content": "hi"}
    rows = [
        {"prompt": "hi", "response": "one"},
        {"prompt": HI, "completion": "two", "answer": "2"},
        {"prompt": [user], "completion": [{"role": "assistant", "content": "three"}]},
        {"messages": [user, {"role": "assistant", "content": "four"}], "question_id": 81},
        {"prompt": [user], "response": {"role": "assistant", "content": "five"}},
    ]
    source = read_source(write_rows(tmp_path / "a.jsonl", rows))
    assert {answer.prompt for answer in source.answers} == {HI}
    assert [answer.response for answer in source.answers] == ["one", "two", "three", "four", "five"]
    assert source.answers[1].metadata == {"answer": "2"} and source.answers[3].row_id == "81"
    assert source.policy is None and len(source.digest) == 64


def test_every_bad_row_is_named_with_what_is_expected(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        '{"prompt": 3, "response": "x"}',
        "{",
        '{"q": "q", "response": "r"}',
        '{"prompt": "p", "response": 4}',
        '{"prompt": "p", "response": [{"role": "user", "content": "p"}]}',
    ]
    unanswered = ['{"messages": [{"role": "user", "content": "hi"}]}', '{"messages": []}']
    path.write_text("\n".join([*rows, *unanswered, "[]"]) + "\n")
    with pytest.raises(DataError) as caught:
        read_source(path)
    lines = str(caught.value).splitlines()
    expected = [
        "row 1: column 'prompt' is a number 3; expected text or messages",
        "row 2: is not JSON",
        "row 3: the row has the columns 'q",
        "row 4: column 'response' is a number 4",
        "row 5: column 'response' ends with a message of the role user; expected the assistant's",
        "row 6: column 'messages' must end with the assistant's response",
        "row 7: column 'messages' must end with the assistant's response",
        "row 8: is a list []",
    ]
    assert [part in line for part, line in zip(expected, lines, strict=True)] == [True] * 8, lines


CALLS = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("prompt", f"{HI} It"),
        ("prompt", "Human: hi\n\nAssistant: It"),
        ("prompt", [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It"}]),
        ("prompt", [{"role": "user", "content": "hi"}, CALLS]),
        ("messages", [{"role": "user", "content": "hi"}, *[{"role": "assistant", "content": "It"}] * 2]),
    ],
)
def test_a_prompt_that_ends_with_a_turn_of_the_assistant_is_refused(tmp_path, column, value):
    """Does the response replace that turn, repeat it or continue it? Each is another conversation to judge."""
    row = {column: value} if column == "messages" else {column: value, "response": "is"}
    with pytest.raises(DataError, match=f"row 1: column '{column}' has a turn of the assistant directly before"):
        read_source(write_rows(tmp_path / "a.jsonl", [row]))


def test_a_prompt_that_opens_the_response_itself_is_read_as_it_is(tmp_path):
    """A run on such data has asked its policy for a further turn; a result of a tool is followed by a response too."""
    messages = [{"role": "user", "content": "hi"}, CALLS, {"role": "tool", "content": "4"}]
    rows = [said(f"{HI} It\n\nAssistant:", "is"), said("Is \n\nAssistant: a boundary?", "no"), said(messages, "four")]
    answers = read_source(write_rows(tmp_path / "a.jsonl", rows)).answers
    assert [to_messages(answer.prompt)[-1]["role"] for answer in answers] == ["assistant", "user", "tool"]


def test_files_have_no_policies(tmp_path):
    files = [str(write_rows(tmp_path / name, [said("p", name)])) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(ConfigError, match="policy selects a policy of a run directory, and the sources are files"):
        run([*files, "policy=SFT,DPO", "data=mini_hh"])


def test_the_last_policy_of_a_run_unless_named(tmp_path):
    directory = run_folder(tmp_path / "run", {"SFT": ["a", "b"], "DPO": ["c", "d"]})
    assert [answer.response for answer in read_source(directory).answers] == ["c", "d"]
    assert read_source(directory, "SFT").policy == "SFT"
    with pytest.raises(DataError, match=r"policy=PPO: .* evaluated SFT, DPO"):
        read_source(directory, "PPO")


def test_responses_to_another_conversation_than_the_prompt_of_their_row_are_left_out(tmp_path):
    """Parts of a safety run are clustered by a prompt that the response does not answer."""
    directory = run_folder(tmp_path / "run", {"DPO": ["a", "b"]})
    row = {"policy": "DPO", "sample_id": 0, "prompt": "q0", "response": "to something else"}
    parts = ("unsafe", "red_team", "red_team_prompt", "push_back", "ask_again", "extraction")
    rows = [{**row, "response": part, "part": part, "prompt_id": part} for part in parts]
    with (directory / "evaluation.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    assert [answer.response for answer in read_source(directory).answers] == ["a", "b", "unsafe", "red_team"]


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None, lambda path: path.write_text("\n")])
def test_nothing_to_read_is_said(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(DataError, match=r"no evaluation\.jsonl|does not exist|no rows"):
        read_source(tmp_path / "x")


def test_episodes_of_several_turns_are_refused(tmp_path):
    directory = run_folder(tmp_path / "run", {"SFT": ["a"]})
    rows = [{**row, "turns": 2} for row in read_jsonl(directory / "evaluation.jsonl")]
    write_rows(directory / "evaluation.jsonl", rows)
    with pytest.raises(DataError, match="several turns"):
        read_source(directory)


# Matching


def sources(tmp_path, a, b):
    return [read_source(write_rows(tmp_path / name, rows)) for name, rows in (("a.jsonl", a), ("b.jsonl", b))]


def said(prompt, response, **columns):
    return {"prompt": prompt, "response": response, **columns}


def test_replies_are_matched_by_prompt_and_number(tmp_path):
    a = [said("p", "a1"), said("q", "a2"), said("p", "a3"), said("only a", "a4")]
    b = [said("q", "b1"), said("p", "b2"), said("p", "b3"), said("p", "b4")]
    matched = match(*sources(tmp_path, a, b))
    assert [(x.response, y.response) for x, y in matched.pairs] == [("a1", "b2"), ("a2", "b1"), ("a3", "b3")]
    assert (matched.unmatched, matched.other_prompt) == ((1, 1), 0)


def test_rows_that_all_have_an_id_are_matched_by_it(tmp_path):
    a = [said("p", "a1", question_id=1), said("p", "a2", question_id=2), said("x", "a3", question_id=3)]
    b = [said("p", "b2", id=2), said("p", "b1", id=1), said("y", "b3", id=3)]
    matched = match(*sources(tmp_path, a, b))
    assert [(x.response, y.response) for x, y in matched.pairs] == [("a1", "b1"), ("a2", "b2")]
    assert matched.other_prompt == 1
    with_none = match(*sources(tmp_path, [*a, said("z", "a4")], b))
    assert [(x.response, y.response) for x, y in with_none.pairs] == [("a1", "b2"), ("a2", "b1")]
    with pytest.raises(DataError, match="have no prompt in common"):
        match(*sources(tmp_path, [said("p", "a")], [said("q", "b")]))


# The file of judgements


def items_of(count):
    return number_items([Candidates(f"p{i // 2}", f"good {i}", f"bad {i}", ("A", "B")) for i in range(count)])


def prefers_good(request):
    return says(reason="good", winner="A" if request.about.first.startswith("good") else "B")


def test_what_was_judged_is_not_asked_again(tmp_path):
    path = tmp_path / "judgements.jsonl"
    judge = FakeJudge(prefers_good)
    rows = judge_items(judge, items_of(5), path, None, 512, count=2)
    assert len(judge.asked) == 10 and read_jsonl(path) == rows
    assert [row["prompt_id"] for row in rows] == [0, 0, 1, 1, 2]
    assert len({row["id"] for row in rows}) == 5
    again = FakeJudge(prefers_good)
    assert judge_items(again, items_of(5), path, None, 512, count=2) == rows and not again.asked
    # More items: the old ones are kept, and the file has the order of the items.
    more = judge_items(again, items_of(8)[::-1], path, None, 512, count=2)
    assert len(again.asked) == 6 and read_jsonl(path) == more
    assert [row["first"] for row in more] == [f"good {i}" for i in range(7, -1, -1)]


def test_a_judge_that_fails_leaves_what_it_answered(tmp_path):
    path = tmp_path / "judgements.jsonl"
    with pytest.raises(JudgeUnavailable):
        judge_items(FakeJudge(prefers_good, fails_after=9), items_of(8), path, None, 512, count=2)
    assert len(read_jsonl(path)) == 4
    with path.open("a") as handle:
        handle.write('{"id": "cut off by a ki')
    judge = FakeJudge(prefers_good)
    rows = judge_items(judge, items_of(8), path, None, 512, count=2)
    assert len(judge.asked) == 8 and [row["score"] for row in rows] == [1.0] * 8
    assert read_jsonl(path) == rows
    uninterrupted = judge_items(FakeJudge(prefers_good), items_of(8), tmp_path / "other.jsonl", None, 512, count=8)
    assert rows == uninterrupted


def test_another_question_is_another_row(tmp_path):
    """Criteria, the bound on the answer, and the judge."""
    path = tmp_path / "judgements.jsonl"
    judge = FakeJudge(prefers_good)
    with_reference = number_items([Candidates("p0", "good 0", "bad 0", ("A", "B"), "r")])
    questions = (
        (items_of(1), None, 512),
        (items_of(1), load_rubric(), 512),
        (items_of(1), None, 99),
        (with_reference, None, 512),
        (number_items([Candidates("p", "a", "b")] * 2), None, 512),  # the same texts twice are two rows
    )
    rows = [
        row for items, rubric, max_tokens in questions for row in judge_items(judge, items, path, rubric, max_tokens, 1)
    ]
    assert len({row["id"] for row in rows}) == 6


def test_a_judgement_with_a_reference_has_its_own_directory(tmp_path):
    """The three judgements are kept, and the same command finds its own."""
    both = sources(tmp_path, [said("p", "good", x="1", y="2")], [said("p", "bad", x="1", y="2")])
    files = [str(source.path) for source in both]

    def directory_of(*words):
        options = read_words([*files, f"outputs={tmp_path / 'out'}", *words])
        reference = both[0].answers[0].metadata.get(options.reference)
        items = number_items([Candidates("p", "good", "bad", ("A", "B"), reference)])
        judging = Judging(options, both, match(*both), None, Metered(FakeJudge(prefers_good)), items)
        judging.run()
        assert [row["reference"] for row in read_jsonl(judging.directory / "judgements.jsonl")] == [reference]
        return judging.directory

    # rows that another program wrote are not removed
    foreign = write_rows(tmp_path / "mine" / "judgements.jsonl", [{"id": "1"}])
    with pytest.raises(ConfigError, match="mine contains a judgement of other responses"):
        directory_of(f"to={tmp_path / 'mine'}")
    assert read_jsonl(foreign) == [{"id": "1"}]

    commands = (["reference=x"], [], ["reference=y"])
    directories = [directory_of(*words) for words in commands]
    assert len(set(directories)) == 3
    assert [directory_of(*words) for words in commands] == directories


def test_the_summary_by_hand(tmp_path):
    """Four comparisons: a win, a disagreement, an unscored one, equal responses. Wins 1, ½ and ½ of three scored."""
    answers = {"win": lambda first: "A" if first else "B", "bias": lambda first: "A", "refuse": lambda first: None}

    def answer(request):
        kind = next(kind for kind in answers if kind in request.about.prompt)
        winner = answers[kind]("mine" in request.about.first)
        return says(reason="r", winner=winner) if winner else Completion("no", "refused")

    items = number_items(
        [Candidates(kind, "mine is longer", "other") for kind in answers] + [Candidates("s", "x", "x")]
    )
    rows = judge_items(FakeJudge(answer), items, tmp_path / "j.jsonl", None, 512, 8)
    summary = summarise(rows)
    assert summary["win_rate"].mean == pytest.approx(2 / 3) and summary["win_rate"].n == 3
    assert (summary["comparisons"], summary["identical"], summary["unscored"]) == (4, 1, 1)
    assert (summary["unscored/refused"], summary["unscored/invalid"]) == (2, 0)
    assert summary["consistency"].mean == 0.5 and summary["consistency"].n == 2
    assert summary["first_shown"].mean == 0.75  # win: once of two votes; bias: twice
    assert summary["words"].mean == pytest.approx((2 + 2 + 2 + 0) / 4)


def test_identical_responses_everywhere_have_no_win_rate(tmp_path):
    """Three prompts, the same text from both sides: nothing was compared, so ½ would be an invented tie rate."""
    items = number_items([Candidates(f"p{i}", "same", "same") for i in range(3)])
    judge = FakeJudge(prefers_good)
    summary = summarise(judge_items(judge, items, tmp_path / "j.jsonl", None, 512, 8))
    assert judge.asked == [] and (summary["comparisons"], summary["identical"], summary["unscored"]) == (3, 3, 0)
    assert np.isnan(summary["win_rate"].mean) and summary["win_rate"].n == 0


def test_a_vote_for_the_place_is_not_a_vote_for_a_side():
    """The second response wins in both orders: shown second it is a vote against the position, shown first for it."""
    votes = [{"shown": shown, "winner": "second", "reason": "", "unscored": None} for shown in ("first", "second")]
    row = {"votes": votes, "winner": "second", "prompt_id": 0, "score": 0.0, "first": "other", "second": "mine"}
    assert summarise([row])["first_shown"].mean == 0.5


def test_wins_in_all_comparisons_are_not_certain():
    vote = {"shown": "first", "winner": "first", "reason": "", "unscored": None}
    row = {"votes": [vote, vote], "winner": "first", "score": 1.0, "first": "mine", "second": "other"}
    estimate = summarise([{**row, "prompt_id": i} for i in range(8)])["win_rate"]
    # Wilson's lower bound of 8 wins in 8: n/(n + z²)
    assert estimate.mean == estimate.high == 1 and estimate.low == pytest.approx(8 / (8 + 1.959964**2))


def test_grades_are_written_and_read_the_same_way(tmp_path):
    rubric = load_rubric()
    path = tmp_path / "grades.jsonl"
    items = number_items([Candidates(f"p{i}", f"r{i}", "", ("P", "")) for i in range(3)])

    grades = says(reason="", **dict.fromkeys(rubric.names, 3))
    judge = FakeJudge(lambda request: Completion("no", "refused") if request.about.response == "r1" else grades)
    rows = judge_items(judge, items, path, rubric, 512, 2, graded=True)
    assert read_jsonl(path) == rows == judge_items(judge, items, path, rubric, 512, 2, graded=True)
    assert len(judge.asked) == 3
    assert rows[1]["honesty"] is None and rows[1]["unscored"] == "refused" and rows[0]["name"] == "P"
    summary = summarise_grades(rows, rubric)
    assert summary["grade/honesty"].mean == 3 and summary["grade/honesty"].unscored == 1
    assert summary["unscored"] == summary["unscored/refused"] == 1


def test_what_was_asked_is_metered():
    """By hand: .25 of an earlier attempt and .25 now; a ledger also has the .10 that no attempt recorded."""
    paid = Completion("x", usage=Usage(10, 1, 2, 5), cost_usd=0.25)
    judge = Metered(FakeJudge(lambda request: Completion("x", stored=True) if request.draw else paid))
    judge.complete_many([CompletionRequest(()), CompletionRequest((), draw=1)])
    expected = {"answers": 2, "stored": 1, "usd": 0.25, "input_tokens": 13, "output_tokens": 5}
    assert judge.cost() == expected
    assert judge.cost({"answers": 3, "usd": 0.25}) == expected | {"answers": 5, "usd": 0.5}
    judge.judge.ledger = SimpleNamespace(spent_usd=0.6)
    assert judge.cost({"answers": 3, "usd": 0.25})["usd"] == 0.6
    assert judge.cost()["usd"] == 0.25
