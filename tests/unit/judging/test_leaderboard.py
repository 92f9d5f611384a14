"""`leaderboard`: which rows it takes, what it counts, and what it says where the judgements do not suffice."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from synthetic_judgements import judgement, league, write_rows

from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import read_json
from rlhf_lab.packs.judging.leaderboard.board import STYLE, Board, build_board, style_differences
from rlhf_lab.packs.judging.leaderboard.judgements import find_files, read_judgements, read_labels
from rlhf_lab.packs.judging.leaderboard.report import board_view, leaderboard

STRENGTHS = {"base": 0.0, "sft": 0.6, "dpo": 1.2}
AB = ("A", "B")


def board_of(tmp_path: Path, rows: list[dict], labels: list[dict] | None = None, **options) -> Board:
    judgements = read_judgements([write_rows(tmp_path / "judgements.jsonl", rows)])
    people = read_labels(write_rows(tmp_path / "labels.jsonl", labels)) if labels else []
    return build_board(judgements, people, **options)


def circle(*votes: tuple[str | None, str | None]) -> list[dict]:
    """A against B with these votes, and two comparisons more that let both be rated."""
    rows = [judgement(AB, vote, number=index) for index, vote in enumerate(votes)]
    rows.append(judgement(AB, ("first", "first"), number=len(rows)))
    rows.append(judgement(AB, ("second", "second"), number=len(rows)))
    return rows


def test_refusals_and_truncations_are_counted_by_reason_and_are_no_ties(tmp_path):
    rows = circle(("first", "first"), ("first", None), (None, None), ("tie", "tie"))
    rows[2]["votes"][0]["unscored"] = "truncated"
    board = board_of(tmp_path, rows)
    b = next(player for player in board.players if player.name == "B")
    # Scores of B: 0, ½, 0, 1 in the four that are scored.
    assert b.win_rate.mean == 0.375
    assert (b.comparisons, b.win_rate.unscored) == (4, 2)
    assert b.unscored == board.unscored == {"refused": 1, "truncated": 1}
    assert "Unscored, and not counted as ties: 1 refused, 1 truncated." in board_view(board)["remarks"]
    rows.append({**judgement(AB, ("first", "first"), number=9), "votes": [], "winner": None, "score": None})
    assert board_of(tmp_path, rows).unscored == board.unscored | {"no reason given": 1}


def test_orders_that_disagree_are_half_a_win_and_show_in_the_position_bias(tmp_path):
    board = board_of(tmp_path, circle(("first", "second"), ("first", "second"), ("tie", "first")))
    position = board.position
    # Votes for the position shown first: of the first two rows all, of the third ½ and 0, of the last two half.
    assert position.first_shown_wins.mean == pytest.approx((2 + 0.25 + 1) / 5)
    assert position.first_both.mean == pytest.approx(2 / 5)
    assert position.consistent.mean == pytest.approx(2 / 5)
    # A: ½, ½, ¾, 1, 0.
    assert board.players[0].name == "A" and board.baseline == "A"
    b = board.players[1]
    assert b.win_rate.mean == pytest.approx(1 - 2.75 / 5)


def test_a_player_against_itself_and_identical_replies(tmp_path):
    rows = circle(("first", "second"))
    rows.append(judgement(("A", "A"), ("first", "second"), number=7, second="another answer of A"))
    rows.append(judgement(AB, ("tie", "tie"), number=8, first="same", second="same"))
    board = board_of(tmp_path, rows)
    assert board.with_itself == 1
    assert board.players[0].comparisons == 4  # the identical one is a tie like any other
    assert board.position.first_shown_wins.n == 4  # and no evidence of a position


def test_players_that_never_wrote_different_responses_are_not_ranked(tmp_path):
    """Four identical responses of A and C are no ties: C has no rating, and the note says why."""
    rows = circle(("first", "second"), ("second", "first"))
    rows += [judgement(("A", "C"), ("tie", "tie"), number=n, first="same", second="same") for n in range(20, 24)]
    board = board_of(tmp_path, rows)
    c = next(player for player in board.players if player.name == "C")
    assert c.comparisons == 0 and c.win_rate.n == 0 and "C" not in board.ranking.order
    assert board.unscored == {"of identical responses": 4}
    assert "Unscored, and not counted as ties: 4 of identical responses." in board_view(board)["remarks"]


def test_rows_given_twice_count_once_and_files_add_up(tmp_path):
    rows = circle(("first", "first"))
    one = write_rows(tmp_path / "one" / "judgements.jsonl", rows)
    other = write_rows(tmp_path / "other.jsonl", [*rows, judgement(("A", "C"), ("tie", "tie"), number=20)])
    assert find_files([str(tmp_path / "one"), str(other)]) == [one, other]
    judgements = read_judgements([one, other])
    assert (len(judgements.rows), judgements.repeated) == (4, 3)


def compared(outputs, name, *sources, policies=("p", "p"), names=AB, **result):
    """A stored judgement, as `judge` writes it."""
    directory = outputs / "judgements" / name
    rows = [{**row, "names": names} for row in circle(("first", "first"))]
    file = write_rows(directory / "judgements.jsonl", rows)
    sources = [{"path": str(source), "policy": policy} for source, policy in zip(sources, policies, strict=True)]
    (directory / "result.json").write_text(json.dumps({"sources": sources, "names": names, **result}))
    return file


def test_what_judge_wrote_is_found_by_what_it_compared(tmp_path):
    outputs = tmp_path / "outputs"
    a, b, c = (outputs / "runs" / name for name in "abc")
    for run in (a, b, c):
        run.mkdir(parents=True)
    a_b, b_c = compared(outputs, "a-vs-b", a, b), compared(outputs, "b-vs-c", b, c)
    assert find_files([str(a), str(b)]) == [a_b]
    assert find_files([str(c), str(b), str(a)]) == [b_c, a_b]
    with pytest.raises(DataError, match=r"missing: not a file, .*judge A B, then leaderboard A B"):
        find_files([str(a), str(b), str(c / "missing")])
    with pytest.raises(DataError, match="a: not a file"):
        find_files([str(a), str(c)])
    # files of responses lie anywhere, and the judge's files are in the outputs that the command names
    first, second = (write_rows(tmp_path / f"{name}.jsonl", [{"prompt": "p", "response": name}]) for name in "xy")
    files = compared(tmp_path / "elsewhere", "x-vs-y", first, second)
    assert find_files([str(first), str(second)], tmp_path / "elsewhere") == [files]


def test_a_player_is_one_source_over_all_files(tmp_path):
    """Two runs of PPO: each is "PPO" against SFT, and has its directory in its name against the other."""
    weak, strong, sft = (tmp_path / "runs" / name for name in ("ppo-weak", "ppo-strong", "sft"))
    files = [
        compared(tmp_path, "weak-sft", weak, sft, policies=("PPO", "SFT"), names=("PPO", "SFT")),
        compared(tmp_path, "strong-sft", strong, sft, policies=("PPO", "SFT"), names=("PPO", "SFT")),
        compared(tmp_path, "both", weak, strong, policies=("PPO", "PPO"), names=("ppo-weak PPO", "ppo-strong PPO")),
    ]
    names = [row.names for row in read_judgements(files).rows]
    pairs = [("ppo-weak PPO", "SFT"), ("ppo-strong PPO", "SFT"), ("ppo-weak PPO", "ppo-strong PPO")]
    assert list(dict.fromkeys(names)) == pairs
    # one file alone keeps the names of its rows
    assert {row.names for row in read_judgements(files[:1]).rows} == {("PPO", "SFT")}


def test_players_of_equal_directories_and_of_files_of_responses(tmp_path):
    one, other = tmp_path / "one" / "runs" / "ppo", tmp_path / "other" / "runs" / "ppo"
    responses = tmp_path / "model_outputs.json"
    files = [
        compared(tmp_path, "1", one, responses, policies=("PPO", None), names=("PPO", "gpt4")),
        compared(tmp_path, "2", responses, other, policies=(None, "PPO"), names=("gpt4", "PPO")),
    ]
    names = [row.names for row in read_judgements(files).rows]
    assert list(dict.fromkeys(names)) == [(f"{one} PPO", "gpt4"), ("gpt4", f"{other} PPO")]


def test_judgements_of_two_judges_are_not_pooled_unless_named(tmp_path):
    a, b = tmp_path / "outputs" / "runs" / "a", tmp_path / "outputs" / "runs" / "b"
    asked = {"rubric": None, "settings": {"items": 0, "seed": 0, "reference": "", "max_tokens": 512}}
    exact = compared(tmp_path / "outputs", "a-vs-b", a, b, judge={"kind": "simulated", "noise": 0.0}, **asked)
    noisy = compared(tmp_path / "outputs", "a-vs-b-2", a, b, judge={"kind": "simulated", "noise": 0.5}, **asked)
    message = (
        r"different ways, .*judgements/a-vs-b \(judge\.noise=0\.0\); .*judgements/a-vs-b-2 \(judge\.noise=0\.5\)\. "
        r"Name directories instead: leaderboard .*a-vs-b$"
    )
    with pytest.raises(DataError, match=message):
        find_files([str(a), str(b)])
    assert find_files([str(exact.parent), str(noisy.parent)]) == [exact, noisy]
    # another reference or rubric is another question; another selection of comparisons is not
    guided = {**asked["settings"], "reference": "answer"}
    compared(tmp_path / "outputs", "a-vs-b-2", a, b, judge={"kind": "simulated", "noise": 0.0}, settings=guided)
    with pytest.raises(DataError, match=r"\(reference=none\); .*\(reference=answer\)"):
        find_files([str(a), str(b)])
    rubric = {"rubric": {"name": "mine", "digest": "0123456789"}, "settings": asked["settings"]}
    compared(tmp_path / "outputs", "a-vs-b-2", a, b, judge={"kind": "simulated", "noise": 0.0}, **rubric)
    with pytest.raises(DataError, match=r"\(rubric=none\); .*\(rubric=mine \(012345\)\)"):
        find_files([str(a), str(b)])
    selection = {"rubric": None, "settings": {**asked["settings"], "items": 5, "seed": 1}}
    compared(tmp_path / "outputs", "a-vs-b-2", a, b, judge={"kind": "simulated", "noise": 0.0}, **selection)
    assert find_files([str(a), str(b)]) == [exact, noisy]


def test_a_judgement_that_is_not_complete_is_noted(tmp_path):
    complete = compared(tmp_path, "a-vs-b", tmp_path / "a", tmp_path / "b", status="completed")
    partial = compared(tmp_path, "a-vs-c", tmp_path / "a", tmp_path / "c", names=("A", "C"), status="interrupted")
    remarks = board_view(build_board(read_judgements([complete, partial])))["remarks"]
    assert [note for note in remarks if "not complete" in note] == [
        f"{partial} is not complete: the judgement stopped before its end, or is still running. The same judge command "
        "continues it."
    ]


def test_one_prompt_in_two_files_is_one_prompt(tmp_path):
    rows = circle(("first", "first"), ("second", "second"))
    again = [{**row, "id": f"again-{row['id']}", "names": ["A", "C"], "second": "answer of C"} for row in rows]
    judgements = read_judgements([write_rows(tmp_path / f"{i}.jsonl", part) for i, part in enumerate((rows, again))])
    assert build_board(judgements).ranking.prompts == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ["A"]}, r"row 2: names is \['A'\]; write the authors of the two responses"),
        ({"names": ["A", ""]}, "row 2: names is"),
        ({"prompt": None}, "row 2: prompt is NoneType, not text"),
        ({"winner": "A"}, 'row 2: winner is \'A\'; write "first", "second", "tie" or null'),
        ({"score": 2}, "row 2: score is 2; expected a number from 0 to 1"),
        ({"votes": "first"}, "row 2: votes is not a list of objects"),
        ({"votes": [{"winner": "first"}]}, r"row 2: votes\[0\].shown is None"),
        ({"votes": [{"shown": "first", "winner": "B"}]}, r"row 2: votes\[0\].winner is 'B'"),
    ],
)
def test_a_wrong_row_is_told_by_file_row_and_field(tmp_path, changes, message):
    rows = [judgement(AB, ("first", "first")), judgement(AB, ("tie", "tie"), number=1) | changes]
    with pytest.raises(DataError, match=message):
        read_judgements([write_rows(tmp_path / "judgements.jsonl", rows)])


def test_wrong_files_are_told(tmp_path):
    with pytest.raises(DataError, match=r"missing: not a file, not a directory with judgements\.jsonl"):
        find_files([str(tmp_path / "missing")])
    contents = {"[1]": "row 1 is not an object", "{": "row 1 is not JSON", "": "no judgement; a row is"}
    for content, message in contents.items():
        (tmp_path / "bad.jsonl").write_text(f"{content}\n")
        with pytest.raises(DataError, match=message):
            read_judgements([tmp_path / "bad.jsonl"])
    with pytest.raises(DataError, match=r"truth=.*no such file"):
        read_labels(tmp_path / "labels.jsonl")


def test_names_that_are_no_players_are_refused(tmp_path):
    with pytest.raises(DataError, match="baseline=C is not a player; name one of A, B"):
        board_of(tmp_path, circle(), baseline="C")
    with pytest.raises(DataError, match="judge=C is not a player"):
        board_of(tmp_path, circle(), judge="C")
    with pytest.raises(DataError, match="all comparisons are of a player with itself"):
        board_of(tmp_path, [judgement(("A", "A"), ("tie", "tie"))])


def test_players_without_a_finite_strength_are_named_with_what_to_judge_next(tmp_path):
    rows = circle(("first", "first"))
    rows += [judgement(("A", "C"), ("first", "first"), number=number) for number in range(30, 33)]
    rows.append(judgement(("D", "E"), ("first", "first"), number=40))
    board = board_of(tmp_path, rows)
    view = board_view(board)
    words = " ".join(view["connection"])
    assert "C: lost every comparison with the others" in words
    assert "D, E: no scored comparison with A" in words
    assert "Judge next, on more prompts:" in words and "C against B" in words
    ranks = {row[0]: row[1] for row in view["tables"][0][1]}
    assert ranks["C"] == "not rated" and ranks["A"] != "not rated"
    # Its win rates are measured all the same.
    c = next(player for player in board.players if player.name == "C")
    assert c.win_rate.mean == 0.0


def test_a_player_without_a_scored_comparison_is_not_rated(tmp_path):
    rows = circle(*[("first", "first")] * 20)
    rows += [judgement(("A", "C"), (None, "first"), number=number) for number in range(30, 35)]
    view = board_view(board_of(tmp_path, rows))
    assert {row[0]: row[1] for row in view["tables"][0][1]} == {"A": "1", "B": "2", "C": "not rated"}
    assert "C: no scored comparison with A or anyone compared with it." in view["connection"]
    # and a board without any scored comparison has a reason in every place
    unscored = board_view(board_of(tmp_path, rows[-5:]))
    assert unscored["finding"] == "No player can be rated."
    assert unscored["biases"][1] == "Style: strengths at equal style are unknown: no player can be rated."


def test_ties_alone_have_no_interval_of_width_zero(tmp_path):
    """A judge that always prefers the response shown first says nothing, and .500 ±.000 said that it knows."""
    rows = [judgement(AB, ("first", "second"), number=number) for number in range(10)]
    board = board_of(tmp_path, rows)
    assert board.ranking.win_probabilities["A", "B"].mean == 0.5
    assert not board.ranking.win_probabilities["A", "B"].bounded and not board.ranking.strengths["A"].bounded
    assert board.ranking.ranks == {"A": (1, 2), "B": (1, 2)}
    b = next(player for player in board.players if player.name == "B")
    assert b.length_controlled.win_rate.low < 0.4 and b.length_controlled.win_rate.high > 0.6


def test_a_length_difference_that_never_varies_has_a_reason(tmp_path):
    rows = [row | {"first": "long " * 3, "second": "short"} for row in circle(("first", "first"))]
    view = board_view(board_of(tmp_path, rows))
    assert view["tables"][1][1][1][3] == "–"
    assert view["biases"][-1] == (
        "Length: B: the win rate at equal length is unknown: the length difference is the same in every comparison."
    )


def test_equal_labels_have_an_undefined_kappa(tmp_path):
    rows = circle(("first", "first"), ("second", "second"))
    label = {key: rows[0][key] for key in ("prompt", "first", "second")} | {"winner": "first", "annotator": "ann"}
    words = board_view(board_of(tmp_path, rows, [label]))["people"]
    assert words[0].endswith("Cohen's κ is undefined.")


def test_the_order_and_the_planted_position_bias_are_found(tmp_path):
    rows, _ = league(STRENGTHS, 80, position=0.7, refused=0.02)
    board = board_of(tmp_path, rows)
    assert board.ranking.order == ("dpo", "sft", "base")
    assert board.position.first_shown_wins.low > 0.53
    view = board_view(board)
    assert any("the judge favours a position" in line for line in view["biases"])
    fair, _ = league(STRENGTHS, 80)
    assert any("no bias is detected" in line for line in board_view(board_of(tmp_path, fair))["biases"])


def test_a_verbose_player_falls_at_equal_style_and_with_people(tmp_path):
    """As good as the baseline, but longer, before a judge that likes length; people do not care."""
    strengths = {"base": 0.0, "sft": 0.5, "verbose": 0.0}
    rows, labels = league(strengths, 120, verbosity={"verbose": 0.5}, length=1.5, labelled=0.5)
    board = board_of(tmp_path, rows, labels)
    verbose = next(player for player in board.players if player.name == "verbose")
    assert verbose.win_rate.low > 0.53
    assert verbose.length_controlled.win_rate.low < 0.5 < verbose.length_controlled.win_rate.high
    assert verbose.corrected.mean.low < 0.5 < verbose.corrected.mean.high
    assert verbose.corrected.mean.high < verbose.win_rate.high
    assert 0 < verbose.corrected.weight <= 1
    assert board.styled.style["length"].low > 0
    # Without style the verbose one passes for the better of the two; at equal style they are equal.
    assert board.ranking.win_probabilities["verbose", "base"].low > 0.5
    at_equal_style = board.styled.win_probabilities["verbose", "base"]
    assert at_equal_style.low < 0.5 < at_equal_style.high
    assert "At equal style: sft (strength 0.33 [0.18, 0.51] logits)." in board_view(board)["finding"]
    people = board.people
    assert people.annotators == 2 and people.unmatched == 0
    assert people.longer.low > 0.03


def test_labels_match_in_either_order_and_by_all_texts(tmp_path):
    rows = circle(("first", "first"), ("first", "first"), ("second", "second"))

    def label(row: dict, winner: str, *, turned: bool = False, annotator: str = "ann") -> dict:
        first, second = (row["second"], row["first"]) if turned else (row["first"], row["second"])
        return {"prompt": row["prompt"], "first": first, "second": second, "winner": winner, "annotator": annotator}

    labels = [
        label(rows[0], "first"),
        label(rows[1], "second", turned=True),  # the row's first response
        label(rows[2], "first"),
        label(rows[2], "first", annotator="bob"),
        label(rows[2], "second", annotator="cy"),
        {**label(rows[3], "tie"), "prompt": "another"},
    ]
    people = board_of(tmp_path, rows, labels).people
    assert (people.matched, people.unmatched, people.comparisons) == (5, 1, 3)
    assert people.agreement.mean == pytest.approx(2 / 3)  # of the third, two of three people say the opposite
    with pytest.raises(DataError, match="no label of a person matches a judged comparison"):
        board_of(tmp_path, rows, labels[-1:])


def test_a_label_of_a_prompt_in_plain_text_matches_its_transcript(tmp_path):
    """`judge` writes prompts as transcripts, also those that its sources have in plain text."""
    rows = circle(("first", "first"))
    label = {"first": rows[0]["first"], "second": rows[0]["second"], "winner": "first", "annotator": "ann"}
    assert rows[0]["prompt"] == "\n\nHuman: question 0\n\nAssistant:"
    assert board_of(tmp_path, rows, [{**label, "prompt": "question 0"}]).people.matched == 1


def test_self_preference_is_measured_for_the_judge_that_plays(tmp_path):
    rows = [judgement(AB, ("first", "first"), number=number) for number in range(20)]
    rows += [judgement(AB, ("second", "second"), number=number) for number in range(20, 24)]
    labels = [
        {key: row[key] for key in ("prompt", "first", "second")} | {"winner": ("first", "second")[index % 2]}
        for index, row in enumerate(rows)
    ]
    board = board_of(tmp_path, rows, labels, judge="A")
    # The judge gives A 20 of 24, people give it 12 of 24.
    assert board.people.own.mean == pytest.approx(8 / 24)
    assert board.people.own.low > 0
    assert board.people.annotators == 1


def test_style_counts_what_markdown_shows():
    text = "# Title\n\n- one **bold** word\n* two\n1. three\n\n##no header, 2 * 3 * 4"
    counts = {name: count(text) for name, count in STYLE.items()}
    assert counts == {"length": len(text), "lists": 3, "bold": 1, "headers": 1}
    # comments, list items and special methods in code are no style
    code = "Use `__init__`:\n```python\n# comment\ndef __init__(self):\n- 1\n```\n- item\n~~~\n# open block\n**x**"
    assert {name: count(code) for name, count in STYLE.items()} == {
        **{"length": len(code), "lists": 1, "bold": 0, "headers": 0}
    }
    differences = style_differences([text, "", "ab"], ["plain", "", "abcdef"])
    assert differences["lists"].tolist() == [1.0, 0.0, 0.0]
    assert differences["length"][2] == pytest.approx((2 - 6) / 8)
    # per feature (first − second)/(first + second): 1 where only the first has it, 0 where neither does
    assert differences["bold"].tolist() == differences["headers"].tolist() == [1.0, 0.0, 0.0]
    assert differences["length"][:2].tolist() == pytest.approx([(len(text) - 5) / (len(text) + 5), 0])


def test_the_files_hold_the_numbers_and_escape_names(tmp_path):
    rows, labels = league({"<b>base": 0.0, "sft": 0.5, "dpo": 1.0}, 30, labelled=0.3)
    write_rows(tmp_path / "judgements.jsonl", rows)
    truth = write_rows(tmp_path / "labels.jsonl", labels)
    written = leaderboard([str(tmp_path)], truth=truth, to=tmp_path / "out", judge="dpo")
    numbers = json.loads(written.numbers.read_text(encoding="utf-8"))
    strengths = [player["strength"]["mean"] for player in numbers["players"]]
    assert strengths == sorted(strengths, reverse=True)
    assert sum(strengths) == pytest.approx(0)
    assert numbers["baseline"] == "<b>base"
    assert numbers["people"]["own"]["n"] > 0
    assert numbers["players"][0]["with_people"]["weight"] >= 0
    assert numbers["ranking"]["connected"] and numbers["ranking"]["draws"] == 1000
    page = written.page.read_text(encoding="utf-8")
    assert "<b>base" not in page.replace("&lt;b&gt;base", "") and "&lt;b&gt;base" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\((?!#)""", page)
    assert "<svg" in page and "Win probabilities" in page


def test_the_same_judgements_give_the_same_numbers(tmp_path):
    rows, _ = league(STRENGTHS, 20)
    write_rows(tmp_path / "judgements.jsonl", rows)
    first, second = (leaderboard([str(tmp_path)], to=tmp_path / name).numbers.read_text() for name in ("one", "two"))
    assert first == second


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "leaderboard needs files or directories"),
        (["to=x"], "leaderboard needs files or directories"),
        (["x", "basline=A"], "basline is not an option of leaderboard; did you mean baseline"),
    ],
)
def test_a_wrong_command_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        COMMANDS["leaderboard"](words)


def test_the_command_prints_the_table_and_writes_beside_no_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows, labels = league(STRENGTHS, 20, labelled=0.5)
    source = write_rows(tmp_path / "run" / "judgements.jsonl", rows)
    with console.capture() as captured:
        COMMANDS["leaderboard"]([str(source), "baseline=sft"])
    text = captured.get()
    assert "3 players, 60 comparisons on 20 prompts" in text
    assert "Position: the response shown first" in text
    (page,) = (tmp_path / "outputs" / "leaderboards").glob("run-*/leaderboard.html")
    assert page.with_suffix(".json").is_file()
    COMMANDS["leaderboard"]([str(source), "outputs=mine"])
    assert len(list((tmp_path / "mine" / "leaderboards").glob("run-*/leaderboard.html"))) == 1
    write_rows(tmp_path / "labels.jsonl", labels)
    COMMANDS["leaderboard"]([str(source), "truth=labels.jsonl", "judge=dpo", "to=there"])
    numbers = read_json(tmp_path / "there" / "leaderboard.json")
    assert numbers["people"]["own"]["n"] > 0
    assert [path.name for path in source.parent.iterdir()] == ["judgements.jsonl"]


def test_single_votes_without_the_other_order_give_no_position_bias(tmp_path):
    rows = circle(("first", "first"))
    for row in rows:
        row["votes"] = row["votes"][:1]
    board = board_of(tmp_path, rows)
    assert math.isnan(board.position.first_shown_wins.mean)
    assert "the position bias is unknown" in board_view(board)["biases"][0]
