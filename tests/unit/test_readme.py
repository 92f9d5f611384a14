"""What the README promises exists: recipes, commands, make targets, files."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import recipe_table
import sizes
from hydra._internal.utils import get_args_parser
from support import command_inside

from rlhf_lab import main
from rlhf_lab.cli.table import described
from rlhf_lab.config import compose, inventory, root
from rlhf_lab.stages import artifacts, preflight
from rlhf_lab.sweeps import sweep

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "recipes/README.md", *sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md"))]
"""Pages whose commands run here; those of CONTRIBUTING.md need its plug-in: tests/learn/test_contributing.py."""
GUIDES = [page for page in PAGES if not page.startswith("docs/design/")]  # those tell of the past too
LINKING = sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.md")])
LINKING = [page for page in LINKING if not page.startswith((".", "outputs"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACEHOLDER = re.compile(r"…|\.\.\.|\b(NAME|FOLDER|FILE|POLICY)\b")

LOOKING = {"list", "help", "--help", "--cfg", "--version", "plan", "explain", ""}
"""Words of commands that look at something and start nothing."""
RUNS_ELSEWHERE = (
    *("report", "monitor", "rescore", "compare", "dashboard", "features", "publish"),
    *("judge", "label", "leaderboard", "gate", "export", "sandbox", "parler", "vllm"),
)
"""Sub-commands that need what other commands leave behind; of these only the names of options are checked."""


def commands(page: str) -> list[str]:
    """Every `python -m rlhf_lab …` line of a page's code, but those with a placeholder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    code = re.findall(r"^```\w*\n(.*?)^```", text.replace("\\\n", " "), re.S | re.M)
    # Commands may stand behind variables of the environment: `CUDA_VISIBLE_DEVICES=0 python -m rlhf_lab …`.
    lines = [re.sub(r"^(\$ )?([A-Z_]+=\S* )*", "", line.strip()) for block in code for line in block.splitlines()]
    lines += re.findall(r"`(python -m rlhf_lab[^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    found = [line for line in lines if line.startswith("python -m rlhf_lab")]
    return [line for line in found if not PLACEHOLDER.search(line)]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def slug(heading: str) -> str:
    """A heading's anchor as GitHub writes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.fixture
def own_recipe(tmp_path: Path) -> Path:
    """The folder `mine` with the recipe that the README shows."""
    shown = re.search(r"`mine/(recipe/\w+\.yaml)`:\n\n```yaml\n(.*?)```", README, re.S)
    assert shown, "README.md shows no recipe of one's own"
    path = tmp_path / "mine" / shown[1]
    path.parent.mkdir(parents=True)
    path.write_text(shown[2], encoding="utf-8")
    return tmp_path


def test_the_table_of_recipes_is_what_the_recipes_say() -> None:
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    assert text == recipe_table.page(text), "run `make recipes`"
    named = re.findall(r"^\| \[`([^`]+)`\]", text, re.M)
    assert named == list(dict.fromkeys(named)), "a recipe has two rows"
    assert set(named) == set(inventory.recipes())


def test_a_recipe_says_its_question_its_source_and_its_command() -> None:
    for name, path in inventory.recipes().items():
        says = recipe_table.header(path.read_text(encoding="utf-8"))
        assert {"question", "source", "command", "cost", "expect"} <= says.keys(), name
        assert says["command"].startswith(f"python -m rlhf_lab +recipe={name}"), name


def test_the_readme_is_short_enough_to_be_read() -> None:
    assert len(README.split()) <= 1500


def test_the_demo_of_the_readme_has_the_numbers_of_its_page() -> None:
    """The answer's sentence, and the mean of each policy in the rows that the page has too, rounded."""
    shown = README.split("<!-- result -->")[1].split("<!-- /result -->")[0]
    page = (ROOT / "docs" / "results" / "dpo_iterative.md").read_text(encoding="utf-8")
    sentence = re.search(r"\*\*(.+?)\*\*", page)
    assert sentence and " ".join(sentence[1].split()) in " ".join(shown.split())
    table = page[page.index("| policy |") :].split("\n\n")[0].splitlines()
    header = [cell.strip() for cell in table[0].split("|")[1:-1]]
    rows = [[cell.strip().replace("−", "-") for cell in line.split("|")[1:-1]] for line in table[2:]]
    columns = {"gold": "gold reward", "proxy": "proxy reward", "KL (nats)": "KL, nats", "tokens": "tokens"}
    for name, title in columns.items():
        line = next(line for line in shown.splitlines() if line.startswith(name))
        means = [float(value) for value in re.findall(r"(-?[\d.]+) ±", line)]
        expected = [float(row[header.index(title)].split()[0]) for row in rows]
        assert means == pytest.approx(expected, abs=0.0501 if name == "tokens" else 0.00501), name


def before_training(patch: pytest.MonkeyPatch) -> list[str]:
    """Have commands do everything up to where a stage or Hydra's jobs begin. Returns a list of what began."""
    begun: list[str] = []

    def begin_stage(stage: artifacts.Stage, started: float) -> tuple[int, dict[str, Any]]:
        begun.append(stage.recipe)
        return 0, {}

    def begin_jobs(arguments: Sequence[str]) -> int:
        flags = get_args_parser().parse_args(list(arguments))  # what Hydra does first
        assert flags.multirun or flags.help
        begun.extend(flags.overrides)
        return 0

    patch.setattr(main, "run_stage", begin_stage)
    # The models and data that a page names are the reader's and not there: nothing looks into them.
    patch.setattr(preflight, "check", lambda stages: None)
    patch.setattr(artifacts.Stage, "result", lambda stage: None)
    patch.setattr(main, "_run_hydra", begin_jobs)
    patch.setattr(sweep, "_write_results", lambda folder, jobs: 0)
    return begun


def check_commands(page: str, folder: Path, begun: list[str]) -> int:
    """Run every command of a page up to where training begins. Returns their number.

    Args:
        folder: working directory of the commands.
        begun: as `before_training` returns it.
    """
    checked = 0
    for line in commands(page):
        arguments = shlex.split(line, comments=True)[3:]
        first = arguments[0] if arguments else ""
        if "+recipie=x" in arguments:
            continue  # a mistake on purpose
        checked += 1
        if first in RUNS_ELSEWHERE and "--help" not in arguments:
            options = re.findall(r"^--[a-z-]+|^[\w.]+(?==)", "\n".join(arguments[1:]), re.M)
            unknown = [name for name in options if name not in described(first) and not is_setting(name)]
            assert not unknown, f"{page}: {line}: {first} has no option {', '.join(unknown)}"
            continue
        if first in ("audit", "doctor"):  # they begin with the data, or with training
            overrides = [word for word in arguments[1:] if not word.startswith(("to=", "against="))]
            named = any("recipe=" in word for word in overrides)
            # An audit takes data that nothing can be trained on, too.
            recipe = "+recipe=compare_policies" if first == "audit" else "+recipe=sft"
            compose.check_command(overrides if named else [*overrides, recipe])
            continue
        if "table" in arguments:
            continue  # of `plan`: minutes
        begun.clear()
        status, printed = command_inside(folder, *arguments)
        assert status == 0, f"{page}: {line}\n{printed}"
        assert begun or first in LOOKING or LOOKING & {*arguments}, f"{page}: {line} starts nothing"
    return checked


def is_setting(name: str) -> bool:
    """Whether a word of a sub-command names a group or section of the config, such as judge.model."""
    return name.partition(".")[0] in root.names()


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_runs_until_training(page: str, own_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check_commands(page, own_recipe, before_training(monkeypatch))
    assert checked >= {"README.md": 8, "docs/running.md": 20}.get(page, 1)


def test_a_command_that_does_not_compose_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = before_training(monkeypatch)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```\nA=1 python -m rlhf_lab \\\n  +recipe=sft algorithm.lr=1e-4\n```\n")
    assert check_commands("page.md", tmp_path, begun) == 1
    for wrong in ("+recipe=sft algorithm.learning=1", "compare A B polcy=x", "audit data=nothing"):
        page.write_text(f"```\npython -m rlhf_lab {wrong}\n```\n")
        with pytest.raises((AssertionError, compose.ConfigError)):
            check_commands("page.md", tmp_path, begun)


def test_the_kept_question_runs(own_recipe: Path) -> None:
    command = next(line for line in commands("README.md") if "--config-dir mine" in line)
    levels = ("data.annotator.length_bias=0.75,0.0", "seed=0")
    small = [word for word in sizes.overrides("dpo_iterative") if not word.startswith(("needs.", "+needs."))]
    small.append("hydra/launcher=basic")  # here; in processes of their own they import everything once more
    status, printed = command_inside(own_recipe, *shlex.split(command)[3:], *small, *levels)
    assert status == 0, printed
    (study,) = (own_recipe / "outputs" / "studies").iterdir()
    jobs = [json.loads((study / "jobs" / str(i) / "job.json").read_text()) for i in range(2)]
    assert [job["status"] for job in jobs] == ["completed", "completed"]
    kept = json.loads((study / "study.json").read_text())["command"]
    assert shlex.split(kept) == ["python", "-m", "rlhf_lab", *shlex.split(command)[3:], *small, *levels]
    for job in jobs:
        assert json.loads((Path(job["run"]) / "manifest.json").read_text())["command"] == kept
    assert f"Command: `{kept}`" in (study / "table.md").read_text()


def test_the_mistakes_shown_are_the_mistakes_reported() -> None:
    line = next(line for line in commands("README.md") if "+recipie=x" in line)
    with pytest.raises(compose.ConfigError) as caught:
        compose.check_command(shlex.split(line)[3:])
    assert f"{len(caught.value.problems)} problems, nothing was run:" in README
    for problem in caught.value.problems:
        assert f"  • {problem}\n" in README


@pytest.mark.parametrize("page", [*GUIDES, "CONTRIBUTING.md", ".ci/run", ".pre-commit-config.yaml"])
def test_make_targets_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {
        name for pair in re.findall(r"`make ([a-z][a-z-]*)`|^make ([a-z][a-z-]*)", text, re.M) for name in pair if name
    }
    assert named <= make_targets()


def test_every_make_target_has_a_help_line() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    helped = set(re.findall(r"^([a-z-]+):.*## .+", text, re.M))
    assert helped == make_targets()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony and set(phony[1].split()) == helped


def test_the_two_test_commands_are_the_whole_suite() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = dict(re.findall(r"^(test|test-all):.*\n\t@\$\(TESTS\) (.*)$", makefile, re.M))
    assert commands == {"test": "-m 'not slow' tests", "test-all": "-m slow tests"}
    assert all(f"make {name}" in README for name in commands)


def test_ci_runs_the_commands_of_the_readme_in_its_order_in_one_clone() -> None:
    """The tests have to pass beside what the demo left in `outputs/`, which a clone that ran no demo does not have."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = [name for line in re.findall(r"^make (.*) \|\|", script, re.M) for name in re.findall(r"[a-z-]+", line)]
    targets = [name for name in targets if not name.startswith("-") and name in make_targets()]
    assert targets == ["demo", "test", "check", "test-all"]
    assert README.index("make demo") < README.index("make test")
    assert script.index("git clone") < script.index(" demo ")


@pytest.mark.parametrize("page", LINKING)
def test_links_resolve(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name) if name else path
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), f"{page} links to {target}"
