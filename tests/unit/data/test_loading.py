"""hh-rlhf and column-mapped pairs: rows kept, rows dropped and counted, and the splits."""

import ast
import gc
import time
from pathlib import Path

import pytest
from support import checked, public_data
from support import write_jsonl as write

from rlhf_lab.config.registry import build
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data import split_rows as replies
from rlhf_lab.data import transcript
from rlhf_lab.data.file_settings import HHRLHF, Demonstrations, Pairs
from rlhf_lab.data.loading import IN_TRAIN, OVER_LIMIT, REPAIRED, UNREADABLE, fingerprint, heldout
from rlhf_lab.data.pairs import PROMPT_REPEATED, SEVERAL_MESSAGES, parse_row
from rlhf_lab.data.rows import RowProblem


def test_the_page_of_data_quotes_the_reasons_of_the_code():
    """Column "reported as" of the table of kept and dropped rows; a cell may have several reasons."""
    root = Path(__file__).parents[3]
    table = (root / "docs/data.md").read_text(encoding="utf-8").partition("| reported as |\n")[2].partition("\n\n")[0]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (root / "rlhf_lab/data").glob("*.py")]
    texts = {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    reasons = [line.split(" | ")[-1].removesuffix(" |") for line in table.splitlines()[1:]]
    assert len(reasons) > 25
    unknown = [cell for cell in reasons if cell not in texts and not texts.issuperset(cell.split(", "))]
    assert not unknown


def hh_row(question, chosen="yes", rejected="no"):
    prompt = f"\n\nHuman: {question}\n\nAssistant:"
    return {"chosen": f"{prompt} {chosen}", "rejected": f"{prompt} {rejected}"}


def load(path, kind=HHRLHF, **settings):
    return build("data", kind(path=str(path), **settings))


def test_hh_rlhf_harmless_test():
    name = "hh_rlhf_harmless_test.jsonl.gz"
    path = public_data(name) / name
    started = time.perf_counter()
    corpus = load(path)
    assert time.perf_counter() - started < 5
    report = corpus.report["all"]
    assert report.rows == 2312
    assert report.dropped == {replies.EMPTY_CHOSEN: 4, replies.DIFFERENT_HISTORY: 5}
    assert report.kept == 2303 == len(corpus.train) + len(corpus.test)
    # 4 of the file's 5 strict prefixes are its empty chosen responses.
    assert report.noted[replies.PREFIX] == 1
    assert report.noted[replies.NOT_ALTERNATING] == 4
    assert report.statistics["pairs compared"] == 2312
    # 1,023 of 2,312: 44.2 %, ties (11) are not wins.
    assert report.statistics["longer wins"] == 1023 / 2312
    assert report.statistics["length ties"] == 11
    for pair in (*corpus.train, *corpus.test):
        assert pair.prompt.endswith(transcript.REPLY)
        assert pair.chosen == pair.chosen.strip() != ""


def test_every_row_is_accounted_for(tmp_path):
    rows = [hh_row(f"q{i}") for i in range(40)]
    rows += [hh_row("same", "a", "a"), hh_row("empty", "", "b"), hh_row("odd", "a", "a b")]
    path = write(tmp_path / "a.jsonl", rows)
    Path(path).write_text(Path(path).read_text() + "broken\n" + '{"chosen": "x"}\n')
    corpus = load(path, max_bad_rows=2)
    for report in corpus.report.values():
        assert report.rows == report.kept + sum(report.dropped.values())
    total = corpus.report["all"]
    assert total.rows == 45
    assert total.dropped == {replies.IDENTICAL: 1, replies.EMPTY_CHOSEN: 1, UNREADABLE: 2}
    assert total.noted == {replies.PREFIX: 1}
    assert total.examples[replies.IDENTICAL] == "a.jsonl:41"
    assert total.examples[UNREADABLE] == "a.jsonl:44"
    assert total.rows == corpus.report["train"].rows + corpus.report["test"].rows


def test_longer_wins_counts_characters_of_the_reply_and_ties_as_losses(tmp_path):
    rows = [hh_row(f"q{i}", *sides) for i, sides in enumerate([("aaa", "b"), ("a", "b"), ("a", "bb"), ("", "b")] * 10)]
    statistics = load(write(tmp_path / "a.jsonl", rows)).report["all"].statistics
    assert statistics == {"longer wins": 10 / 40, "pairs compared": 40, "length ties": 10}


def test_a_prompt_keeps_its_split_when_rows_come_and_go(tmp_path):
    rows = [hh_row(f"q{i}", f"yes {j}") for i in range(100) for j in range(2)]
    full = load(write(tmp_path / "a.jsonl", rows), test_fraction=0.3)
    half = load(write(tmp_path / "b.jsonl", rows[::-2]), test_fraction=0.3)
    assert not set(full.prompts("train")) & set(full.prompts("test"))
    assert set(half.prompts("test")) == set(full.prompts("test"))
    assert 20 <= len(full.prompts("test")) <= 40
    assert set(full.prompts("test")) == {p for p in full.prompts("train") + full.prompts("test") if heldout(p, 0.3)}


def test_the_hash_of_a_prompt_is_a_fixed_number():
    # printf '\n\nHuman: Hi\n\nAssistant:' | sha256sum  →  9987…: 0x9987 / 0x10000 = 0.5997
    assert not heldout("\n\nHuman: Hi\n\nAssistant:", 0.59)
    assert heldout("\n\nHuman: Hi\n\nAssistant:", 0.61)


def test_a_test_file_loses_the_prompts_that_train_has(tmp_path):
    train = write(tmp_path / "train.jsonl", [hh_row("a"), hh_row("b")])
    test = write(tmp_path / "test.jsonl", [hh_row("b", "other"), hh_row("c"), hh_row("d")])
    corpus = load(train, test_path=test)
    assert [len(corpus.train), len(corpus.test)] == [2, 2]
    assert corpus.report["test"].dropped == {IN_TRAIN: 1}
    assert corpus.report["train"].dropped == {}
    # a text without a prompt stands for itself: texts 2 and 3 are in both files
    train, test = (
        write(tmp_path / f"{name}.jsonl", [{"text": f"text {number}"} for number in numbers])
        for name, numbers in (("train", range(4)), ("test", range(2, 7)))
    )
    corpus = load(train, Demonstrations, test_path=test)
    assert [pair.chosen for pair in corpus.test] == ["text 4", "text 5", "text 6"]
    assert corpus.report["test"].dropped == {IN_TRAIN: 2}


def test_max_pairs_takes_the_first_of_each_split(tmp_path):
    rows = [hh_row(f"q{i}") for i in range(400)]
    path = write(tmp_path / "a.jsonl", rows)
    full, some = load(path, test_fraction=0.5), load(path, test_fraction=0.5, max_pairs=5)
    assert list(some.train) == list(full.train)[:5]
    assert list(some.test) == list(full.test)[:5]
    report = some.report["all"]
    assert report.rows < 400
    assert report.rows == 10 + report.dropped.get(OVER_LIMIT, 0)


def test_the_fingerprint_follows_content_not_names(tmp_path):
    rows = [hh_row(f"q{i}") for i in range(50)]
    first = load(write(tmp_path / "a.jsonl", rows))
    assert load(write(tmp_path / "b.jsonl", rows)).fingerprint == first.fingerprint
    changed = [*rows[:-1], hh_row("q49", "yes!")]
    assert load(write(tmp_path / "c.jsonl", changed)).fingerprint != first.fingerprint
    assert load(tmp_path / "a.jsonl", test_fraction=0.5).fingerprint != first.fingerprint
    assert load(tmp_path / "a.jsonl", max_pairs=2).fingerprint != first.fingerprint
    train, test = list(first.train), list(first.test)
    assert fingerprint(train[:-1], train[-1:] + test) != first.fingerprint == fingerprint(train, test)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([hh_row("q", "a", "a")] * 3, r"no usable row is left for train of 3 rows \(3 × identical replies\)"),
        ([], "the source has no rows"),
        ([hh_row("q")] * 3, r"none of the 3 usable rows is left for test.*change data\.test_fraction"),
    ],
)
def test_an_empty_split_is_an_error(tmp_path, rows, expected):
    with pytest.raises(DataError, match=expected):
        load(write(tmp_path / "a.jsonl", rows))


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


PROMPT = "\n\nHuman: Hi\n\nAssistant:"


@pytest.mark.parametrize(
    ("prompt", "row"),
    [
        ("prompt", {"prompt": "Hi", "chosen": "a", "rejected": "b"}),
        ("prompt", {"prompt": PROMPT, "chosen": " a", "rejected": " b\n"}),
        ("prompt", {"prompt": [user("Hi")], "chosen": [assistant("a")], "rejected": [assistant("b")]}),
        ("prompt", {"prompt": "Hi", "chosen": [assistant("a")], "rejected": [assistant("b")]}),
        ("", {"chosen": f"{PROMPT} a", "rejected": f"{PROMPT} b"}),
        ("", {"chosen": [user("Hi"), assistant("a")], "rejected": [user("Hi"), assistant("b")]}),
    ],
)
def test_pairs_read_text_and_messages_with_explicit_and_implicit_prompts(prompt, row):
    split = parse_row(row, Pairs(path="x", prompt=prompt))
    assert (split.prompt, split.chosen, split.rejected, split.drop, split.notes) == (PROMPT, "a", "b", None, [])


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": [user("Hi"), assistant("a")], "rejected": [user("Hi"), assistant("b")]},
        {"prompt": "Hi\n", "chosen": [user("Hi\n"), assistant("a")], "rejected": [user("Hi\n"), assistant("b")]},
        {"prompt": PROMPT, "chosen": f"{PROMPT} a", "rejected": f"{PROMPT} b"},
    ],
)
def test_a_repeated_prompt_is_removed_from_the_replies_and_noted(row):
    split = parse_row(row, Pairs(path="x"))
    assert (split.prompt, split.chosen, split.rejected, split.notes) == (PROMPT, "a", "b", [PROMPT_REPEATED])


@pytest.mark.parametrize(
    ("prompt", "row", "reason"),
    [
        ("", {"chosen": [user("Hi"), assistant("a")], "rejected": [user("Ho"), assistant("b")]}, "different history"),
        ("", {"chosen": [user("Hi"), assistant("a")], "rejected": [user("Hi")]}, "no assistant turn at the end"),
        ("prompt", {"prompt": "Hi", "chosen": [user("a")], "rejected": [assistant("b")]}, SEVERAL_MESSAGES),
        ("prompt", {"prompt": "Hi", "chosen": [assistant("a")] * 2, "rejected": [assistant("b")]}, SEVERAL_MESSAGES),
        (
            "prompt",
            {"prompt": "Hi", "chosen": f"{PROMPT} a\n\nHuman: More?\n\nAssistant: c", "rejected": f"{PROMPT} b"},
            SEVERAL_MESSAGES,
        ),
        ("prompt", {"prompt": "Oh", "chosen": f"{PROMPT} a", "rejected": f"{PROMPT} b"}, SEVERAL_MESSAGES),
    ],
)
def test_unusable_pairs_have_a_reason(prompt, row, reason):
    assert parse_row(row, Pairs(path="x", prompt=prompt)).drop == reason


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"chosen": "a", "rejected": "b"}, r"write data.prompt=COLUMN \(or data.prompt= if both sides are full"),
        ({"prompt": "Hi", "chosen": "a", "rejected": [assistant("b")]}, "'chosen' is text, but 'rejected' is a list"),
        ({"prompt": "Hi", "chosen": [], "rejected": "b"}, r"column 'chosen' is a list \[\]; expected text or a list"),
    ],
)
def test_wrong_forms_name_the_field(row, expected):
    with pytest.raises(RowProblem, match=expected):
        parse_row(row, Pairs(path="x"))


def test_one_row_without_a_column_is_not_answered_with_another_setting(tmp_path):
    rows = [{"prompt": f"q {i}", "chosen": f"good {i}", "rejected": f"bad {i}"} for i in range(200)]
    del rows[120]["rejected"]
    with pytest.raises(DataError, match=r"row 121: column 'rejected' is missing; .*, unlike rows before it") as caught:
        load(write(tmp_path / "a.jsonl", rows), Pairs)
    assert "data.rejected=" not in str(caught.value)


def test_a_benchmark_holds_out_every_row_and_trains_nothing(tmp_path):
    """`data.test_fraction=1` leaves no row to train on, which is refused where a stage trains, before it is built."""
    path = write(tmp_path / "a.jsonl", [hh_row(f"q{i}") for i in range(30)])
    corpus = load(path, test_fraction=1.0)
    assert (len(corpus.train), len(corpus.test)) == (0, 30)
    with pytest.raises(ConfigError, match=r"trains a model, but data\.test_fraction=1 holds out every row"):
        checked("sft", "data=hh_rlhf", f"data.path={path}", "data.test_fraction=1")
    assert checked("compare_policies", "data=hh_rlhf", f"data.path={path}", "data.test_fraction=1")


def test_streamed_pairs_are_those_in_memory(tmp_path):
    rows = [{**hh_row(f"q{i}", f"yes {j}\n\nno"), "id": i} for i in range(100) for j in range(2)]
    path = write(tmp_path / "a.jsonl", rows)
    full, streamed = load(path, columns=("id",)), load(path, columns=("id",), streaming=True)
    assert streamed.fingerprint == full.fingerprint
    assert streamed.metadata == full.metadata and full.metadata
    for split in ("train", "test"):
        in_memory, on_disk = getattr(full, split), getattr(streamed, split)
        assert list(on_disk) == in_memory
        assert len(on_disk) == len(in_memory)
        assert on_disk[3] == in_memory[3] and on_disk[-1] == in_memory[-1] and on_disk[2:7] == in_memory[2:7]
        with pytest.raises(IndexError):
            on_disk[len(in_memory)]
    assert streamed.prompts("test") == full.prompts("test")
    directory = Path(streamed.train._file.name).parent
    assert directory.exists()
    del streamed, on_disk
    gc.collect()
    assert not directory.exists(), "the files go with the corpus"


def test_rows_with_lone_surrogates_are_kept_and_counted(tmp_path):
    rows = [hh_row(f"question {number}", "a \ud83d" if number < 3 else "b") for number in range(40)]
    report = load(write(tmp_path / "a.jsonl", rows)).report["all"]
    assert report.noted[REPAIRED] == 3 and report.kept == 40
    assert report.examples[REPAIRED] == "a.jsonl:1"


def test_one_column_for_both_sides_is_refused_before_anything_runs():
    with pytest.raises(ValueError, match="chosen and rejected are the same column, 'rejected'"):
        Pairs(path="pairs.jsonl", chosen="rejected")
