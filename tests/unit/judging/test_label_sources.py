"""Sources of labels: responses of a run, a judge's comparisons, files of pairs; and the files that labels become."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_judgements import write_rows
from synthetic_runs import POLICIES, write_run

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data.file_settings import Pairs
from rlhf_lab.data.pairs import build
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.judging.commands import label_command
from rlhf_lab.packs.judging.judges.sources import read_source as read_judge_source
from rlhf_lab.packs.judging.labels import command as command
from rlhf_lab.packs.judging.labels.agreement import calibration, left_chosen, pairwise_agreement, with_judge
from rlhf_lab.packs.judging.labels.command import export
from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, TIE, LabelItem
from rlhf_lab.packs.judging.labels.sources import read_source
from rlhf_lab.packs.judging.labels.store import LabelStore, StoredLabel

PROMPT = "\n\nHuman: hi\n\nAssistant:"


def judgement(number: int, **changes) -> dict:
    row = {"id": f"j{number}", "prompt_id": number // 2, "prompt": PROMPT, "first": f"a{number}"}
    row |= {"second": f"b{number}", "names": ["A", "B"], "votes": [], "winner": FIRST, "score": 1.0}
    return row | changes


def test_a_run_gives_the_replies_of_its_first_and_last_policy(tmp_path):
    run = write_run(tmp_path, prompts=5, samples=2)
    source = read_source(run)
    assert len(source.items) == 10 and source.judge == "the run's reward"
    rows = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    for item in source.items:
        assert item.names == (POLICIES[0], POLICIES[-1])
        written = {(row["policy"], row["prompt"], row["response"]): row["proxy"] for row in rows}
        first = written[item.names[0], item.prompt, item.first]
        second = written[item.names[1], item.prompt, item.second]
        assert item.winner == (FIRST if first > second else SECOND)
    other = read_source(run, "one-pass DPO, iteration 1")
    assert other.items[0].names == ("one-pass DPO", "iteration 1")
    assert not {item.id for item in other.items} & {item.id for item in source.items}


def test_disguises_of_a_safety_run_are_compared_where_both_were_asked(tmp_path):
    """The second policy did not receive the disguise of round 0, which did not fit. Summaries repeat a response, and
    second turns do not answer the prompt of their row."""
    run = write_run(tmp_path, prompts=1, samples=1, policies=("a", "b"))
    rows = []
    for policy, rounds in (("a", (0, 1)), ("b", (1,))):
        for sample in rounds:
            row = {"policy": policy, "prompt_id": "red_team/0", "sample_id": sample, "part": "red_team"}
            rows.append({**row, "prompt": f"{PROMPT} {sample}", "response": f"{policy}{sample}"})
        rows.append({**rows[-1], "part": "red_team_prompt", "prompt": PROMPT})
        rows.append({**rows[-1], "part": "push_back", "prompt_id": "push_back/0"})
    write_rows(run / "evaluation.jsonl", rows)
    source = read_source(run)
    assert [(item.first, item.second) for item in source.items] == [("a1", "b1")]
    assert source.left_out == {"reply of one policy only": 1}


def test_a_run_with_episodes_of_several_turns_is_refused(tmp_path):
    run = write_run(tmp_path, prompts=2, samples=1)
    rows = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    write_rows(run / "evaluation.jsonl", [{**row, "turns": 1} for row in rows])
    assert len(read_source(run).items) == 2
    write_rows(run / "evaluation.jsonl", [{**row, "turns": 3 if row["policy"] == POLICIES[-1] else 1} for row in rows])
    with pytest.raises(DataError, match=f"{POLICIES[-1]} has episodes of several turns, .*label runs with single"):
        read_source(run)


def test_policies_that_are_not_there(tmp_path):
    run = write_run(tmp_path, prompts=2)
    with pytest.raises(ConfigError, match="no policy 'SFTT'; did you mean SFT"):
        read_source(run, "SFTT,iteration 1")
    with pytest.raises(ConfigError, match="name two of"):
        read_source(run, "SFT")
    alone = write_run(tmp_path, "alone", policies=("SFT",))
    with pytest.raises(DataError, match="no responses of two policies"):
        read_source(alone)


def test_identical_replies_are_left_out_and_counted(tmp_path):
    rows = [judgement(0), judgement(1, second="a1 "), judgement(2, winner=None, score=None)]
    source = read_source(write_rows(tmp_path / "judgements.jsonl", rows))
    assert [item.id for item in source.items] == ["j0", "j2"] and source.left_out == {"identical replies": 1}
    assert read_source(tmp_path).items == source.items  # the directory that contains it
    assert source.items[0].prompt_id == "0" and source.items[1].winner is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (judgement(0, winner="a"), "row 1: column 'winner' is text 'a'; expected first, second, tie or null"),
        (judgement(0, score=2), "column 'score' is a number 2; expected a number from 0 to 1"),
        (judgement(0, first=None), "column 'first' is null; expected text"),
        (judgement(0, names=["A"]), "expected two texts"),
        ({"prompt": "hi", "good": "a", "bad": "b"}, "the row has the columns 'prompt', 'good', 'bad'; expected"),
        (judgement(0, second="a0"), "nothing is left to label .1 identical replies."),
    ],
)
def test_rows_of_another_form(tmp_path, row, message):
    with pytest.raises(DataError, match=message):
        read_source(write_rows(tmp_path / "rows.jsonl", [row]))


def test_files_that_cannot_be_labelled(tmp_path):
    same = write_rows(tmp_path / "same.jsonl", [judgement(0), judgement(0)])
    assert read_source(same).left_out == {"the same comparison twice": 1}
    with pytest.raises(DataError, match="two different comparisons have the id 'j0'"):
        read_source(write_rows(tmp_path / "two.jsonl", [judgement(0), judgement(0, first="other")]))
    (tmp_path / "x.jsonl").write_text(json.dumps(judgement(0)) + "\n{broken\n")
    with pytest.raises(DataError, match="1 rows are not JSON objects, the first in line 2"):
        read_source(tmp_path / "x.jsonl")
    with pytest.raises(DataError, match="does not exist"):
        read_source(tmp_path / "y.jsonl")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "a", "rejected": "b"},
        {"prompt": "hi", "first": "a", "second": "b"},
        {"chosen": f"{PROMPT} a", "rejected": f"{PROMPT} b"},
        {
            "prompt": [{"role": "user", "content": "hi"}],
            "chosen": [{"role": "assistant", "content": "a"}],
            "rejected": [{"role": "assistant", "content": "b"}],
        },
    ],
)
def test_files_of_pairs(tmp_path, row):
    (item,) = read_source(write_rows(tmp_path / "pairs.jsonl", [row])).items
    assert (item.prompt, item.first, item.second) == (PROMPT, "a", "b")
    assert item.winner == (FIRST if "chosen" in row else None)


# Export


def labelled(tmp_path: Path, items: list[LabelItem], winners: list[str | None]) -> LabelStore:
    store = LabelStore(tmp_path / "s.sqlite", create=True)
    store.start(items, seed=0)
    for index, (item, winner) in enumerate(zip(items, winners, strict=True)):
        store.label(f"e{index}", "ana", item.id, winner=winner, shown=FIRST, seconds=1.5)
    return store


def test_the_export_is_what_data_pairs_reads(tmp_path):
    tools = [{"type": "function", "function": {"name": "add"}}]
    prompts = [
        PROMPT,
        "\n\nSystem: Be brief.\n\nHuman: one\n\nAssistant: two\n\nHuman:  three\n\n\\Human: quoted\n\nAssistant:",
        render_prompt([{"role": "user", "content": "sum"}], tools),
    ]
    responses = [("a", "b"), ("  indented\n\nHuman: typed", "x"), ('y\n\nCalls: [{"function": {"name": "add"}}]', "z")]
    items = [
        LabelItem(f"i{k}", str(k), prompt, *pair)
        for k, (prompt, pair) in enumerate(zip(prompts, responses, strict=True))
    ]
    items += [LabelItem("tie", "8", PROMPT, "c", "d"), LabelItem("skip", "9", PROMPT, "e", "f")]
    store = labelled(tmp_path, items, [FIRST, SECOND, FIRST, TIE, None])
    file = tmp_path / "pairs.jsonl"
    assert export(store, file) == (3, 1, 1)
    heldout = write_rows(tmp_path / "test.jsonl", [{"prompt": "another", "chosen": "a", "rejected": "b"}])
    corpus = build(Pairs(path=str(file), test_path=str(heldout)))
    read = {pair.prompt: (pair.chosen, pair.rejected) for pair in corpus.train}
    assert read == {prompts[0]: responses[0], prompts[1]: responses[1][::-1], prompts[2]: responses[2]}
    row = json.loads(file.read_text().splitlines()[0])
    assert (row["annotator"], row["seconds"], row["item"]) == ("ana", 1.5, "i0")


def test_all_labels_in_the_form_of_judgements(tmp_path):
    items = [LabelItem(f"i{k}", str(k), PROMPT, "a", "b", ("A", "B"), winner=SECOND) for k in range(3)]
    store = labelled(tmp_path, items, [FIRST, TIE, None])
    assert export(store, tmp_path / "labels.jsonl", "labels") == (2, 0, 1)
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert rows[1] == {
        **{"id": "i1", "prompt_id": "1", "prompt": PROMPT, "first": "a", "second": "b", "names": ["A", "B"]},
        **{"winner": TIE, "annotator": "ana", "seconds": 1.5},
    }
    assert [item.id for item in read_source(tmp_path / "labels.jsonl").items] == ["i0", "i1"]
    # rows of two prompts without an id of their prompt are two clusters
    rows = [{**row, "prompt_id": None, "prompt": f"question {index}"} for index, row in enumerate(rows)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len({item.prompt_id for item in read_source(tmp_path / "labels.jsonl").items}) == 2


# Agreement


def made(winners: str, said: str = "", scores: tuple[float, ...] = (), who: str = "ana", shown: str = FIRST):
    names = {"f": FIRST, "s": SECOND, "t": TIE, "-": None}
    labels = []
    for k, winner in enumerate(winners):
        item = LabelItem(
            *(f"i{k}", str(k), PROMPT, "a", "b"),
            winner=names[said[k]] if said else None,
            score=scores[k] if scores else None,
        )
        labels.append(StoredLabel(item, who, names[winner], shown, 1.0, ""))
    return labels


def test_kappa_with_the_labels_of_a_file_of_pairs():
    """Its chosen response is always the first; 36 of 40 labels agree, half of the pairs are turned: κ is near .8."""
    sides = ("chosen", "rejected")
    items = [LabelItem(f"i{k}", str(k), PROMPT, "a", "b", sides, winner=FIRST) for k in range(40)]
    labels = [StoredLabel(item, "ana", SECOND if k < 4 else FIRST, FIRST, 1.0, "") for k, item in enumerate(items)]
    judged = with_judge(labels)
    assert judged.same.mean == judged.decided.mean == 0.9
    assert 0.7 < judged.kappa.mean < 0.85 and judged.kappa.low > 0.5
    again = [replace(label, annotator="ben") for label in labels]
    assert pairwise_agreement(labels, again).kappa.mean == 1


def test_agreement_with_the_judge_and_between_annotators():
    ana = made("fstf-"[:4], "ffts")
    judged = with_judge(ana)
    assert judged.same.mean == 0.5 and judged.same.n == 4
    assert judged.decided.n == 3 and judged.decided.mean == pytest.approx(1 / 3)
    assert with_judge(made("fs")) is None
    ben = made("ff", who="ben")
    assert pairwise_agreement(ana, ben).same.mean == 0.5 and pairwise_agreement(ana, ben).same.n == 2
    assert pairwise_agreement(ana, []) is None
    # the share of the response that was shown first
    assert left_chosen(made("ffst", shown=FIRST)).mean == pytest.approx(2 / 3)
    assert left_chosen(made("ffst", shown=SECOND)).mean == pytest.approx(1 / 3)


def test_calibration_counts_a_tie_half_and_no_undecided_judge():
    bins = calibration(made("fstfs", scores=(1.0, 0.0, 0.95, 0.5, 0.7)))
    assert [(confidence, rate.n) for confidence, rate in bins] == [(0.7, 1), (pytest.approx(0.983, abs=1e-3), 3)]
    assert bins[0][1].mean == 0 and bins[1][1].mean == pytest.approx(2.5 / 3)


# Console command


def test_options_that_are_wrong_are_named_at_once(tmp_path):
    source = str(write_rows(tmp_path / "judgements.jsonl", [judgement(0)]))
    with pytest.raises(ConfigError) as caught:
        command.run([source, "itmes=3", "items=0", "port=99999", "open=yes", "format=pair", "seed=x"])
    text = "\n".join(caught.value.problems)
    assert "itmes is not an option of label; did you mean items?" in text
    values = [problem.partition("=")[0] for problem in caught.value.problems[1:]]
    assert values == ["items", "port", "open", "format", "seed"]  # in the order of the command
    for expected in ("a number from 1 to 65535", "true or false", "pairs or labels", "a number from 0"):
        assert f"expected {expected}" in text
    with pytest.raises(ConfigError, match="needs a run directory or a file"):
        command.run(["items=3"])


def test_export_from_the_command_line(tmp_path, capsys):
    source = write_rows(tmp_path / "judgements.jsonl", [judgement(0)])
    with pytest.raises(DataError, match="nothing has been labelled yet"):
        command.run([str(source), f"export={tmp_path}/out.jsonl"])
    path = command.store_path(source)
    assert path == tmp_path / "judgements.labels.sqlite"
    store = LabelStore(path, create=True)
    store.start(read_source(source).items, seed=0)
    store.label("e", "ana", "j0", winner=TIE, shown=FIRST, seconds=1.0)
    label_command([str(source), f"export={tmp_path}/out.jsonl"])
    assert "out.jsonl: 0 labels; left out: 1 ties, 0 skips" in capsys.readouterr().out
    label_command([str(source), f"export={tmp_path}/out.jsonl", "format=labels"])
    assert "out.jsonl: 1 labels" in capsys.readouterr().out


def test_an_export_never_overwrites_what_is_labelled(tmp_path, monkeypatch):
    source = write_rows(tmp_path / "pairs.jsonl", [{"prompt": "hi", "chosen": "a", "rejected": "b"}])
    before = source.read_text()
    LabelStore(command.store_path(source), create=True).close()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"export=pairs\.jsonl is the source"):
        command.run([str(source), "export=pairs.jsonl"])
    with pytest.raises(ConfigError, match=r"export=judgements\.jsonl is the source"):
        command.run([".", "to=labels.sqlite", "export=judgements.jsonl"])
    with pytest.raises(ConfigError, match=r"export=labels\.jsonl is the source or the label store"):
        command.run([".", "to=labels.jsonl", "export=labels.jsonl"])
    for name in ("labels.csv", "."):
        with pytest.raises(ConfigError, match=r"expected a file whose name ends in \.jsonl"):
            command.run([str(source), f"export={name}"])
    assert source.read_text() == before


def test_a_judge_takes_the_own_policy_of_an_iterative_run_and_no_other_in_its_place(tmp_path):
    """Its baseline, one-pass DPO, stands last in evaluation.jsonl."""
    directory = write_run(tmp_path)
    assert read_judge_source(directory).policy == POLICIES[-1]
    file = directory / "evaluation.jsonl"
    file.write_text("".join(line for line in file.open() if "iteration 3" not in line))
    with pytest.raises(DataError, match="has no responses of iteration 3; name another policy: policy='SFT'"):
        read_judge_source(directory)
