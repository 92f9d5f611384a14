"""Commands that run several studies: their sizes, and the page about all of them."""

from __future__ import annotations

import json

import pytest
from sizes import COMMON, DATA
from support import command_inside
from synthetic_runs import write_study

from rlhf_lab import main
from rlhf_lab.cli.recipe_command import RecipeCommand, RecipeCommands
from rlhf_lab.cli.study_sets import ABLATIONS, prepare
from rlhf_lab.config import inventory
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports.study.overview import write_overview
from rlhf_lab.results.wording import judged_title
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.verdict import verdicts


def test_every_study_gets_the_size_that_it_has(monkeypatch, tmp_path):
    recipes = {name: path for name, path in inventory.recipes().items() if name != "study/mix_ratio"}
    monkeypatch.setattr(inventory, "recipes", lambda: recipes)
    prepared = prepare(ABLATIONS, ["size=quick", f"outputs={tmp_path}", "study.processes=1"])
    rest = [f"outputs={tmp_path}", "study.processes=1"]
    assert [command.words for command in prepared.commands] == [
        ["+recipe=study/ensemble_lambda", "study.size=quick", *rest],
        ["+recipe=study/buffers", *rest],  # it has no quick size
        ["+recipe=study/reward_weights", "study.size=quick", *rest],
    ]
    prepared.finish()  # nothing has run yet
    page = (tmp_path / "ablations/quick/report.md").read_text()
    assert "study/mix_ratio is left out: its pack is not installed." in page
    assert "study/buffers has no quick size and runs in full." in page
    assert page.count("This study has not run.") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["size=tiny"], "size=tiny is not one of smoke, quick, full"),
        (["+recipe=dpo"], "ablations takes a size and overrides of settings"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments, message):
    with pytest.raises(ConfigError) as error:
        prepare(ABLATIONS, arguments)
    assert any(message in problem for problem in error.value.problems)


def test_the_page_is_written_also_after_an_interruption(monkeypatch):
    ran: list[str] = []

    def run_command(words: list[str]) -> int:
        if words == ["third"]:
            raise KeyboardInterrupt
        ran.append(words[0])
        return main.FAILED if words == ["first"] else main.OK

    monkeypatch.setattr(main, "run_command", run_command)
    finished: list[int] = []
    commands = [RecipeCommand([word]) for word in ("first", "second", "third")]
    assert main._run_commands(RecipeCommands(commands[:2], lambda: finished.append(2))) == main.FAILED
    with pytest.raises(KeyboardInterrupt):
        main._run_commands(RecipeCommands(commands, lambda: finished.append(3)))
    assert finished == [2, 3] and ran == ["first", "second"] * 2


def test_the_page_has_answer_claims_figure_and_link_of_each_study(tmp_path):
    directory = write_study(tmp_path)
    claim = {"metric": "gold", "level": "mixed", "direction": "higher", "versus": None, "margin": 0.0, "by": None}
    plan = json.loads((directory / "study.json").read_text())
    (directory / "study.json").write_text(json.dumps({**plan, "predicts": [claim]}))
    page = write_overview(tmp_path / "ablations/full", "Ablations", {"study/buffers": directory}, "A note.")
    html, text = page.read_text(), page.with_suffix(".md").read_text()
    study = read_study(directory)
    (row,) = verdicts(study)
    assert html.count("<svg") == 1 and 'href="../../study/report.html"' in html
    assert "![study/buffers](../../study/plot.svg)" in text
    for content in (html, text):
        assert "A note." in content and row.verdict in content and study.question in content
    assert f"**{row.verdict}**" in text


def test_one_table_shows_all_domains(tmp_path):
    """A row per domain and volume, a column per design; a study that has not run has no row."""
    directory = write_study(tmp_path)
    study = read_study(directory)
    studies = {"study/one": directory, "study/two": directory, "study/absent": tmp_path / "absent"}
    page = write_overview(tmp_path / "transfer/full", "Transfer", studies, "", has_table=True)
    text = page.with_suffix(".md").read_text()
    labels = [study.label(level) for level in study.levels]
    title = judged_title(study.primary, study.has_gold)
    assert f"| study | {title} | {' | '.join(labels)} |" in text
    rows = [line for line in text.splitlines() if line.startswith(("| one |", "| two |", "| absent |"))]
    assert [row.split(" | ")[0] for row in rows] == ["| one", "| two"]
    means = [
        f"{study.completed[study.completed['level'] == level][study.primary].mean():.2f}" for level in study.levels
    ]
    for mean in means:
        assert mean.replace("-", "−").removeprefix("0") in rows[0]
    assert page.read_text().index('aria-label="table"') < page.read_text().index("Full page of study/one")


@pytest.mark.slow
@pytest.mark.long
def test_the_ablations_run_and_end_in_one_page(tmp_path):
    small = [*COMMON, *DATA["mini_hh"], "study.processes=1"]
    status, printed = command_inside(tmp_path, "ablations", "size=smoke", *small)
    assert status == 0, printed
    page = tmp_path / "outputs/ablations/smoke/report.html"
    assert f"ablations  {page.relative_to(tmp_path)}" in printed
    for name in (name for name in ABLATIONS.recipes if name in inventory.recipes()):
        assert f"Full page of {name}" in page.read_text()
    assert "has not run" not in page.read_text()
