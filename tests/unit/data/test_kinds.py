"""Every kind of data from a file: the parsed row, the message of a wrong row, and the algorithms that take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import checked, public_data
from support import write_jsonl as write

from rlhf_lab.config.registry import build
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data import gsm8k, pairs, prompts, sft, unpaired, verifiable
from rlhf_lab.data.few import few_rows
from rlhf_lab.data.file_settings import Demonstrations, Pairs, PromptsData, Unpaired, Verifiable
from rlhf_lab.data.loading import SORTED
from rlhf_lab.data.mix import OVER_RATIO, split_counts
from rlhf_lab.data.rows import NOT_JSON, OTHER_FACTS, TOO_LARGE, RowProblem
from rlhf_lab.data.settings import Mix
from rlhf_lab.data.transcript import to_conversation

USER, CODE = {"role": "user", "content": "  Indent it. "}, {"role": "assistant", "content": "    return x\n"}
CALL = [{"type": "function", "function": {"name": "now", "arguments": {}}}]
TOOLS = [{"type": "function", "function": {"name": "now"}}]


# Demonstrations


def test_a_conversation_keeps_its_messages_tools_and_spaces():
    calling = {"role": "assistant", "content": None, "tool_calls": CALL, "name": None}
    result = {"role": "tool", "content": "nine", "name": "now", "tool_call_id": None}
    row = {"messages": [USER, calling, result, CODE], "tools": json.dumps(TOOLS), "id": 1}
    split = sft.parse_row(row, Demonstrations(path="x"))
    messages, tools = to_conversation(split.prompt)
    assert tools == TOOLS
    assert messages == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": CALL},
        {"role": "tool", "content": "nine", "name": "now"},
    ]
    assert split.chosen == "    return x"
    assert split.meta == {"learn_from": 0}


@pytest.mark.parametrize(
    ("row", "prompt", "response", "learn_from"),
    [
        ({"prompt": "Hi", "completion": " Yo \n"}, "\n\nHuman: Hi\n\nAssistant:", "Yo", None),
        ({"prompt": "Hi", "completion": "    x"}, "\n\nHuman: Hi\n\nAssistant:", "   x", None),
        ({"prompt": [USER], "completion": [CODE]}, "\n\nHuman:   Indent it. \n\nAssistant:", "    return x", 1),
        ({"text": "\n\nHuman: a\n\nAssistant: b"}, "\n\nHuman: a\n\nAssistant:", "b", 0),
        ({"text": "Once upon a time.\n"}, "", "Once upon a time.", None),
    ],
)
def test_the_columns_of_a_row_say_its_form(row, prompt, response, learn_from):
    split = sft.parse_row(row, Demonstrations(path="x"))
    assert (split.prompt, split.chosen, split.drop) == (prompt, response, None)
    assert split.meta.get("learn_from") == learn_from


def test_turns_nobody_answers_are_left_out_and_said():
    split = sft.parse_row({"messages": [USER, CODE, USER]}, Demonstrations(path="x"))
    assert split.chosen == "    return x" and sft.UNANSWERED in split.notes
    assert sft.parse_row({"messages": [USER]}, Demonstrations(path="x")).drop


# Prompts


def test_prompts_carry_their_columns():
    split = prompts.parse_row({"prompt": "Why?", "id": 3, "category": "safe", "none": None}, PromptsData(path="x"))
    assert split.prompt == "\n\nHuman: Why?\n\nAssistant:"
    assert split.metadata == {"id": 3, "category": "safe"}


@pytest.mark.parametrize(
    ("prompt", "drop"),
    [
        ("\n\nHuman: Why?\n\nAssistant: So.", prompts.NO_QUESTION),
        ([USER, CODE], prompts.NO_QUESTION),
        ("\n\nHuman: Why?\n\nAssistant: So.\n\nHuman: And?", None),
        ("\n\nHuman: Why?\n\nAssistant:", None),
        ("\n\nAssistant:", None),
        (" ", prompts.EMPTY_PROMPT),
        ([{**USER, "content": " "}], prompts.EMPTY_PROMPT),
    ],
)
def test_a_conversation_that_ends_with_its_response_is_no_prompt(prompt, drop):
    """A column such as `chosen` of hh-rlhf would show the response to the policy that is asked for it."""
    assert prompts.parse_row({"prompt": prompt}, PromptsData(path="x")).drop == drop
    if prompt != "\n\nAssistant:":  # a model may speak first, but not answer
        assert verifiable.parse_row({"prompt": prompt, "answer": 1}, Verifiable(path="x")).drop == drop
        without = verifiable.parse_row({"prompt": prompt, "answer": " "}, Verifiable(path="x"))
        assert without.drop == (drop or verifiable.EMPTY_ANSWER)


def test_a_transcript_keeps_its_turns_in_every_kind_of_prompts():
    """With an answer, it was quoted as the text of one user message."""
    prompt = "\n\nHuman: Why?\n\nAssistant: So.\n\nHuman: And?\n\nAssistant:"
    for module, settings in ((prompts, PromptsData), (verifiable, Verifiable)):
        assert module.parse_row({"prompt": prompt, "answer": 1}, settings(path="x")).prompt == prompt


def test_the_first_of_several_turns_is_asked_and_all_are_facts():
    split = prompts.parse_row({"turns": ["One?", "Two?"], "question_id": 81}, PromptsData(path="x", prompt="turns"))
    assert split.prompt == "\n\nHuman: One?\n\nAssistant:"
    assert split.metadata == {"turns": ["One?", "Two?"], "question_id": 81}


# Tools


@pytest.mark.parametrize(
    ("module", "settings"),
    [(pairs, Pairs), (sft, Demonstrations), (unpaired, Unpaired), (prompts, PromptsData), (verifiable, Verifiable)],
)
@pytest.mark.parametrize("prompt", ["What time is it?", [{"role": "user", "content": "What time is it?"}]])
def test_a_prompt_of_any_form_offers_the_tools_of_its_row(module, settings, prompt):
    replies = {"completion": " Noon", "chosen": " Noon", "rejected": " No", "label": True, "answer": "12"}
    split = module.parse_row({"prompt": prompt, **replies, "tools": TOOLS}, settings(path="x"))
    assert split.drop is None
    messages, tools = to_conversation(split.prompt)
    assert (messages, tools) == ([{"role": "user", "content": "What time is it?"}], TOOLS)


REPEATED = "\n\nHuman: Now?\n\nAssistant:"


@pytest.mark.parametrize(
    ("prompt", "side"),
    [
        ("Now?", lambda text: [{"role": "user", "content": "Now?"}, {"role": "assistant", "content": text}]),
        ([{"role": "user", "content": "Now?"}], lambda text: f"{REPEATED} {text}"),
        (None, lambda text: f"{REPEATED} {text}"),
    ],
    ids=["text and messages", "messages and text", "no prompt column"],
)
def test_a_side_repeats_its_prompt_without_the_tools(prompt, side):
    row = {"prompt": prompt, "chosen": side("Noon"), "rejected": side("No"), "tools": TOOLS}
    settings = Pairs(path="x") if prompt else Pairs(path="x", prompt="")
    split = pairs.parse_row(row, settings)
    assert (split.drop, split.chosen, split.rejected) == (None, "Noon", "No")
    assert split.prompt == f"\n\nTools: {json.dumps(TOOLS)}{REPEATED}"


# Unpaired


def test_a_liked_reply_is_the_chosen_side_and_a_disliked_one_the_rejected_side():
    for label in (True, 1.0, "True", "1"):
        split = unpaired.parse_row({"prompt": "Hi", "completion": " Yo", "label": label}, Unpaired(path="x"))
        assert (split.chosen, split.rejected, split.drop) == ("Yo", "", None)
    for label in (False, 0, "false"):
        split = unpaired.parse_row({"prompt": [USER], "completion": [CODE], "label": label}, Unpaired(path="x"))
        assert (split.chosen, split.rejected, split.drop) == ("", "    return x", None)


def test_unpaired_data_need_both_labels(tmp_path):
    rows = [{"prompt": f"{i}?", "completion": "x", "label": True} for i in range(40)]
    with pytest.raises(DataError, match=r"are liked, but unpaired data need both kinds; check the column data.label"):
        build("data", Unpaired(path=write(tmp_path / "a.jsonl", rows)))


@pytest.mark.parametrize("first", [True, False])
def test_a_limit_leaves_both_labels_of_sorted_unpaired_data(tmp_path, first):
    rows = [{"prompt": f"{i}?", "completion": "x", "label": first == (i < 60)} for i in range(120)]
    settings = Unpaired(path=write(tmp_path / "a.jsonl", rows), max_pairs=16)
    for corpus in (build("data", settings), few_rows(settings)):
        assert [bool(pair.chosen) for pair in corpus.train] == [first] * 15 + [not first]
        assert corpus.report["train"].noted == {SORTED: 1}


# Verifiable


def test_answers_and_further_columns_of_verifiable_data(tmp_path):
    rows = [{"prompt": f"  {i} + 1?\n", "answer": i + 1, "level": i % 3} for i in range(40)]
    rows.append({"prompt": "  0 + 1?\n", "answer": 7, "level": 0})
    corpus = build("data", Verifiable(path=write(tmp_path / "a.jsonl", rows)))
    prompt = "\n\nHuman:   0 + 1?\n\n\nAssistant:"
    assert corpus.answers[prompt] == "1"
    assert corpus.metadata[prompt] == {"answer": 1, "level": 0}
    assert corpus.oracle.measure([prompt, prompt], ["#### 1", "#### 2"])["correct"].tolist() == [1, 0]
    assert corpus.report["all"].dropped == {gsm8k.CONTRADICTS: 1}
    assert to_conversation(prompt).messages[0]["content"] == "  0 + 1?\n"  # a completion of code continues right there


# What is wrong with a row


@pytest.mark.parametrize(
    ("parse", "settings", "row", "problem"),
    [
        (sft, Demonstrations, {"conversation": []}, "'messages' is missing; the row has 'conversation'; expected mess"),
        (sft, Demonstrations, {"prompt": "a"}, "'completion' is missing; .* data.prompt=COLUMN data.completion=COLUMN"),
        (sft, Demonstrations, {"messages": "Hi"}, r"'messages' is text 'Hi'; expected a list of \{role, content\}"),
        (sft, Demonstrations, {"messages": [USER, CODE], "tools": [1]}, "expected a list of tools, each an object"),
        (prompts, PromptsData, {"question": "a"}, "did you mean 'question'[?] Then write data.prompt=question"),
        (unpaired, Unpaired, {"prompt": "a", "completion": "b", "label": "good"}, "'label' is text 'good'; expected"),
        (verifiable, Verifiable, {"prompt": "a"}, r"'answer' is missing; .*\(or data.answer= if rewards read other"),
        (verifiable, Verifiable, {"prompt": "a", "answer": True}, "'answer' is a truth value True; expected text or a"),
        (
            verifiable,
            Verifiable,
            {"prompt": "a", "answer": float("nan")},
            "'answer' is null; expected text or a number",
        ),
    ],
)
def test_a_wrong_row_is_told_its_field_the_expected_form_and_the_fix(parse, settings, row, problem, tmp_path):
    chosen = settings(path=str(tmp_path / "a.jsonl"))
    with pytest.raises(RowProblem, match=problem):
        parse.parse_row(row, chosen)
    write(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match=r"a.jsonl, row 1: "):
        build("data", chosen)


# Metadata


def test_facts_belong_to_a_prompt_and_to_the_fingerprint(tmp_path):
    def corpus(rows, **settings):
        return build("data", Pairs(path=write(tmp_path / "a.jsonl", rows), **settings))

    rows = [{"prompt": f"{i}?", "chosen": "a", "rejected": "b", "score": i} for i in range(40)]
    simple = [{key: value for key, value in row.items() if key != "score"} for row in rows]
    with_scores, without = corpus(rows), corpus(simple)
    assert with_scores.metadata["\n\nHuman: 3?\n\nAssistant:"] == {"score": 3}
    assert without.metadata == {} and corpus(rows, columns=()).fingerprint == without.fingerprint
    assert with_scores.fingerprint != without.fingerprint
    with pytest.raises(DataError, match="column 'id' is missing"):
        corpus(rows, columns=("id",))
    twice = corpus([*rows, {**rows[0], "chosen": "c", "score": -1}, {**rows[1], "big": "x" * 70_000}])
    assert twice.report["all"].noted == {OTHER_FACTS: 2, TOO_LARGE: 1}
    assert twice.metadata["\n\nHuman: 0?\n\nAssistant:"] == {"score": 0}


def test_what_json_cannot_hold_is_left_out_and_said():
    split = prompts.parse_row({"prompt": "a", "image": b"png", "id": 1}, PromptsData(path="x"))
    assert split.metadata == {"id": 1} and NOT_JSON in split.notes
    # a table may fill missing values with NaN
    missing = prompts.parse_row({"prompt": "a", "score": float("nan"), "scores": [float("nan")]}, PromptsData(path="x"))
    assert missing.metadata == {} and missing.notes == [NOT_JSON]


# Mixes


def source(path: Path, kind: str, count: int, start: int = 0, **more) -> dict:
    rows = [{"prompt": f"{kind} {i}?", "chosen": f"a{i}", "rejected": "b"} for i in range(start, start + count)]
    return {"kind": "pairs", "path": write(path / f"{kind}{start}.jsonl", rows), "test_fraction": 0.2, **more}


def test_a_mix_keeps_its_ratios_and_its_order(tmp_path):
    sources = {"small": source(tmp_path, "s", 50, weight=1), "large": source(tmp_path, "l", 400, weight=2)}
    corpus = build("data", Mix(sources=sources))
    again = build("data", Mix(sources=sources))
    other = build("data", Mix(sources=sources, seed=1))
    parts = [pair.meta["part"] for pair in corpus.train]
    assert abs(parts.count("large") - 2 * parts.count("small")) <= 1
    assert [pair.prompt for pair in corpus.train] == [pair.prompt for pair in again.train]
    assert [pair.prompt for pair in corpus.train] != [pair.prompt for pair in other.train]
    assert corpus.fingerprint == again.fingerprint != other.fingerprint
    assert parts[:10] != sorted(parts[:10]), "the sources are interleaved"
    report = corpus.report["large/train"]
    assert report.kept == parts.count("large") and report.dropped[OVER_RATIO] == report.rows - report.kept
    for split in corpus.report.values():
        assert split.rows == split.kept + sum(split.dropped.values())


def test_shares_of_a_mix():
    # 10 rows at weight 1 allow 30 at weight 3; 100 there are more than enough.
    assert split_counts([10, 100], [1, 3]) == [10, 30]
    assert split_counts([100, 30], [1, 3]) == [10, 30]
    assert split_counts([5, 7], [None, None]) == [5, 7]
    assert split_counts([10, 100], [1, 3], limit=20) == [5, 15]
    assert split_counts([10, 30], [None, None], limit=20) == [5, 15]
    # 1.6 rows of each source are rounded to 2, and two of the five give up the one that is too much
    assert split_counts([10] * 5, [1] * 5, limit=8) == [1, 1, 2, 2, 2]
    assert split_counts([10, 10], [None, None], limit=3) == [1, 2]


def test_no_prompt_or_plain_text_of_a_mix_is_on_both_sides(tmp_path):
    """The second source holds out half of the prompts that the first one trains on."""
    first = source(tmp_path, "s", 100)
    corpus = build("data", Mix(sources={"first": first, "second": {**first, "test_fraction": 0.5}}))
    assert corpus.test and not set(corpus.prompts("train")) & set(corpus.prompts("test"))
    path = write(tmp_path / "texts.jsonl", [{"text": f"text {number}"} for number in range(60)])
    sources = {name: {"kind": "sft", "path": path, "test_fraction": part} for name, part in (("a", 0.2), ("b", 0.5))}
    corpus = build("data", Mix(sources=sources))
    assert corpus.test and not {pair.chosen for pair in corpus.train} & {pair.chosen for pair in corpus.test}


def test_the_first_of_two_sources_with_a_prompt_knows_its_answer(tmp_path):
    sources = {}
    for name in ("one", "two"):
        path = write(tmp_path / f"{name}.jsonl", [{"prompt": f"{i}?", "answer": name} for i in range(60)])
        sources[name] = {"kind": "verifiable", "path": path}
    corpus = build("data", Mix(sources=sources))
    assert set(corpus.answers.values()) == {known["answer"] for known in corpus.metadata.values()} == {"one"}


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        ({}, "sources is not set; write data.sources.NAME.kind=KIND"),
        ({"a": {"path": "x"}}, r"sources.a.kind is not set; write data.sources.a.kind=… with one of"),
        ({"a": {"kind": "pears", "path": "x"}}, "sources.a: data.kind=pears is not registered"),
        ({"a": {"kind": "pairs", "path": "x", "prmpt": "q"}}, "sources.a.prmpt is not a setting; did you mean prompt"),
        ({"a": {"kind": "pairs", "path": "x", "weight": 1}, "b": {"kind": "pairs", "path": "x"}}, "a weight above 0"),
    ],
)
def test_a_wrong_mix(sources, problem):
    with pytest.raises((ConfigError, ValueError), match=problem):
        Mix(sources=sources)


# Which algorithms take what


@pytest.mark.parametrize(
    ("recipe", "overrides", "problem"),
    [
        ("dpo", ["data=unpaired"], "needs preference pairs, which data=unpaired does not have; use algorithm=kto"),
        ("sft", ["data=prompts"], "responses to imitate, which data=prompts does not .*; use data=.*needs.policy=DIR"),
        ("grpo", ["data=prompts", "algorithm.ptx_weight=1"], "needs responses to imitate"),
        ("grpo", ["data=prompts", "reward=length", "reward.terms.length.standardise=corpus"], "use .*=fixed"),
        (
            "grpo",
            ["data=verifiable", "data.answer=", "reward=verifier", "needs.reward=null"],
            "reward=verifier needs answers that can be checked",
        ),
    ],
)
def test_data_that_an_algorithm_cannot_use_are_refused(recipe, overrides, problem):
    with pytest.raises(ConfigError, match=problem):
        checked(recipe, "data.path=x.jsonl", *overrides)


def test_data_that_algorithms_take():
    checked("dpo", "algorithm.loss=kto", "algorithm.beta=0.1", "data=unpaired", "data.path=x.jsonl", "needs.policy=x")
    checked("grpo", "data=prompts", "data.path=x.jsonl", "needs.policy=x", "reward=length", "needs.reward=null")
    checked("sft", "data=sft", "data.path=x.jsonl")
    sources = ["data.sources.a.kind=sft", "data.sources.a.path=a.jsonl", "data.sources.a.weight=2"]
    sources += ["data.sources.b.kind=gsm8k", "data.sources.b.path=b.jsonl", "data.sources.b.weight=1"]
    config = checked("sft", "data=mix", *sources)
    provided = config.data.capabilities
    assert Capability.DEMONSTRATIONS in provided and not provided & (Capability.PAIRS | Capability.ANSWERS)


# Real files


def test_xstest_and_mt_bench():
    directory = public_data("xstest_prompts.csv", "mt_bench_question.jsonl")
    path = directory / "xstest_prompts.csv"
    corpus = build("data", checked("grpo", "data=xstest", f"data.path={path}", "needs.policy=x").data)
    assert corpus.report["all"].kept == 450
    assert {metadata["label"] for metadata in corpus.metadata.values()} == {"safe", "unsafe"}
    path = directory / "mt_bench_question.jsonl"
    corpus = build("data", checked("grpo", "data=mt_bench", f"data.path={path}", "needs.policy=x").data)
    assert corpus.report["all"].kept == 80
    assert all(len(metadata["turns"]) == 2 for metadata in corpus.metadata.values())
