"""Every check of the audit finds what is planted, and nothing in a clean corpus."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import toy_rows, write_pairs

from rlhf_lab.cli.commands import audit_command
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data import audit as module
from rlhf_lab.data import split_rows as replies
from rlhf_lab.data.audit import OVERLAPS, PAIR_CHECKS, AuditReport, AuditResult, audit, render

BOS, EOS = 1, 2


def pair(question="What is a noun?", chosen="A naming word.", rejected="I cannot say.", **meta):
    return Pair(f"\n\nHuman: {question}\n\nAssistant:", chosen, rejected, meta)


def corpus(*train, test=()):
    return Corpus("sample", train, test, "0")


def encode(prompt, response, max_length):
    """One token per word, with BOS and EOS; a row that is too long loses its end."""
    prompt_ids = [BOS, *range(10, 10 + len(prompt.split()))]
    response_ids = [*range(10, 10 + len(response.split())), EOS]
    return prompt_ids, response_ids[: max(max_length - len(prompt_ids), 0)]


CLEAN = corpus(
    *(pair(f"Train question {i}?") for i in range(5)), test=tuple(pair(f"Test question {i}?") for i in range(3))
)


def test_lengths_of_single_responses_count_no_empty_side():
    """A disliked response is the rejected side of its pair, and the chosen one is empty."""
    single = [pair("A?", "one two", ""), pair("B?", "", "one two three")]
    report = audit(Corpus("sample", single, [], "0", preferences=False), encode=encode)
    assert report.statistics["train/median characters"] == (7 + 13) / 2
    prompt = 1 + len(single[0].prompt.split())  # BOS and words, as many in both
    assert report.statistics["train/median tokens"] == prompt + (2 + 3) / 2 + 1


def test_a_clean_corpus_has_no_findings():
    report = audit(CLEAN, encode=encode, max_length=100, eos_id=EOS, bos_id=BOS)
    assert [conclusion for conclusion in report.findings if conclusion.count] == []
    assert report.skipped == {}
    assert {conclusion.split for conclusion in report.findings} == {"train", "test"}


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (replies.EMPTY_CHOSEN, pair(chosen=" ")),
        (replies.EMPTY_REJECTED, pair(rejected="")),
        (replies.IDENTICAL, pair(chosen="a", rejected="a")),
        (replies.PREFIX, pair(chosen="Yes.", rejected="Yes. Sure.")),
        (replies.NOT_ALTERNATING, pair("a\n\nHuman: b")),
        (replies.NO_HUMAN_FIRST, Pair("\n\nAssistant: a\n\nHuman: b\n\nAssistant:", "c", "d")),
        (replies.MARKER_IN_BODY, pair("What?\nHuman: b")),
        (replies.MARKER_IN_BODY, pair(rejected="Assistant: b")),
        ("special token written out", pair(chosen="Fine.</s>")),
        ("special token written out", pair("<|im_start|>user Hi")),
    ],
)
def test_one_bad_pair_is_found_once_in_its_split(check, bad):
    report = audit(corpus(pair("ok?"), bad, test=[pair("test?")]))
    assert report.count(check, "train") == 1
    assert report.count(check, "test") == 0
    assert check in PAIR_CHECKS
    conclusion = next(conclusion for conclusion in report.findings if conclusion.check == check and conclusion.count)
    assert conclusion.of == 2
    assert conclusion.share == 0.5
    assert conclusion.why
    assert conclusion.example.startswith("…")


def test_duplicates_contradictions_and_shared_prompts():
    twice = pair("a?", "x", "y")
    report = audit(corpus(twice, pair("b?", "x", "y"), twice, twice, pair("a?", "y", "x"), pair("a?", "z", "y")))
    assert report.count("duplicate pair", "train") == 2
    assert report.count("contradicts another pair", "train") == 1
    assert report.count("prompt with several pairs", "train") == 1


def test_plain_texts_have_no_prompt_to_find_fault_with():
    texts = [Pair("", f"text {number}", "") for number in range(3)]
    report = audit(replace(corpus(*texts[:2], test=texts[2:]), preferences=False))
    assert not any(finding.count for finding in report.findings)


def test_train_and_test_overlap_exactly_loosely_and_by_opening():
    exact, loose, opening = OVERLAPS
    train = [pair("Same?"), pair("What is 2 + 2?"), pair("Tell me a joke.\n\nAssistant: Ha.\n\nHuman: More")]
    test = [pair("Same?"), pair("what is  2+2"), pair("Tell me a joke."), pair("New?")]
    report = audit(corpus(*train, test=test))
    assert report.count(exact, "test") == 1
    assert report.count(loose, "test") == 2
    assert report.count(opening, "test") == 3


def test_tokens_are_counted_per_reply():
    # prompt 6 words, replies 3 and 3 words, BOS and EOS: 11 tokens a side; the long reply makes 6 + 40 + 2 = 48.
    long = pair(chosen="word " * 39 + "word")
    report = audit(corpus(pair(), long), encode=encode, max_length=11, eos_id=EOS, bos_id=BOS)
    assert report.count(module.TRUNCATED, "train") == 1
    assert report.count(module.MISSING_EOS, "train") == 1
    assert report.count(module.NO_ROOM, "train") == 0
    assert report.statistics["train/longest tokens"] == 48
    conclusion = next(conclusion for conclusion in report.findings if conclusion.check == module.TRUNCATED)
    assert (conclusion.of, conclusion.unit) == (4, "replies")
    assert audit(corpus(pair()), encode=encode, max_length=7).count(module.NO_ROOM, "train") == 2


def test_prompts_without_responses_miss_no_end():
    prompts = Corpus("prompts", [pair("What is it?", "", "")], [], "0", preferences=False)
    report = audit(prompts, encode=encode, max_length=100, eos_id=EOS, bos_id=BOS)
    assert report.count(module.MISSING_EOS, "train") == 0
    assert report.statistics["train/longest tokens"] == 6  # BOS, "Human:", three words, "Assistant:"


def test_missing_eos_and_double_bos():

    def wrong(prompt, response, max_length):
        prompt_ids, response_ids = encode(prompt, response, max_length)
        return [BOS, *prompt_ids], response_ids[:-1]

    report = audit(CLEAN, encode=wrong, eos_id=EOS, bos_id=BOS)
    assert report.count(module.MISSING_EOS, "train") == 10
    assert report.count(module.DOUBLE_BOS, "test") == 6


def test_checks_that_cannot_run_are_named():
    assert set(audit(CLEAN).skipped) == {module.TRUNCATED, module.NO_ROOM, module.MISSING_EOS, module.DOUBLE_BOS}
    assert audit(CLEAN, encode=encode, max_length=9).skipped == {
        module.MISSING_EOS: "an EOS token",
        module.DOUBLE_BOS: "a BOS token",
    }
    with pytest.raises(KeyError, match="did not run"):
        audit(CLEAN).count(module.TRUNCATED, "train")


def test_what_the_loader_dropped_is_not_said_to_be_none_found():
    loaded = LoadReport(rows=10, kept=1, dropped={"empty chosen": 4})
    console = Console(file=io.StringIO(), width=200)
    console.print(render(audit(Corpus("sample", [pair()], [], "0", report={"train": loaded}))))
    text = console.file.getvalue()
    assert "dropped: empty chosen" in text
    assert "Not in the corpus, because loading dropped such rows: empty chosen." in text
    (none_found,) = (line for line in text.splitlines() if line.startswith("Checked, none found"))
    assert "empty chosen" not in none_found and "empty rejected" in none_found


def test_a_report_shows_shares_examples_and_what_was_not_checked():
    finding = AuditResult("empty replies", "train", 3, 12, "pairs", "nothing to learn", "row 7")
    skipped = {"leaks": "a test file", "labels": "a test file"}
    report = AuditReport("mine", [finding], {"train/pairs": 12.0, "test/pairs": 4.0}, skipped)
    console = Console(file=io.StringIO(), width=200)
    console.print(render(report))
    shown = console.file.getvalue()
    assert "Audit of mine" in shown and "25.00%" in shown and "row 7" in shown
    assert "Not checked: leaks, labels (needs a test file)." in shown
    assert AuditResult("none", "test", 0, 0, "pairs", "why").share == 0.0  # an empty split


@pytest.mark.parametrize(("algorithm", "checked"), [("sft", True), ("compare", False)])
def test_the_command_reads_the_tokenizer_of_a_model(algorithm, checked, tmp_path, monkeypatch, capsys):
    """An algorithm that trains on no rows has no maximum length; the report says that these checks need one."""
    path = write_pairs(tmp_path / "pairs.jsonl", toy_rows(20))
    encoder = SimpleNamespace(row=encode, eos_id=EOS, tokenizer=SimpleNamespace(bos_token_id=BOS))
    monkeypatch.setattr("rlhf_lab.models.build.load_encoder", lambda source, settings: encoder)
    words = [f"algorithm={algorithm}", "data=pairs", f"data.path={path}", "model=hf", f"model.path={tmp_path}"]
    audit_command([*words, "algorithm.max_length=8"] if checked else words)
    output = " ".join(capsys.readouterr().out.split())
    assert ("needs max_length" in output) is not checked
    assert "a tokenizer: model=hf" not in output
