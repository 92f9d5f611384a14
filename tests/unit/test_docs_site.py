"""Pages of the documentation site that are generated: what they contain, and how links and lists are rewritten."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from docs_site import commands, links, metrics, page, papers, python_api, results, settings, staging, tutorials
from docs_site.page import Page

import rlhf_lab
from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.config import inventory, registry
from rlhf_lab.config.overrides import literal
from rlhf_lab.core.metrics import of_packages


def rewrite(text: str, path: str = "running.md", base: str = "docs") -> tuple[str, list[str]]:
    """Return a rewritten text, and the files that it links to."""
    linked: list[str] = []
    return links.rewritten(Page(path, "", text, base=base), linked.append), linked


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("numbers.md#seeds", "numbers.md#seeds"),
        ("../README.md", "README.md"),
        ("README.md", "pages.md"),
        ("design/", "design/README.md"),
        ("../recipes/dpo.yaml", "reference/recipes/dpo.md"),
        ("../rlhf_lab/core/packs.py", "source/rlhf_lab/core/packs.py.md"),
        ("@reference/cli.md", "reference/cli.md"),
        ("/CHANGELOG.md", "project/changelog.md"),
        ("https://arxiv.org/abs/2305.18290", "https://arxiv.org/abs/2305.18290"),
        ("#commands", "#commands"),
    ],
)
def test_a_link_leads_to_the_place_on_the_site(link: str, expected: str) -> None:
    assert rewrite(f"[x]({link})")[0] == f"[x]({expected})"


def test_links_are_relative_to_the_page_and_code_stays() -> None:
    text, linked = rewrite("[x](../rlhf_lab/main.py)\n\n```\n[y](../z.py)\n```\n", "code/sandbox.md", "docs")
    assert text == "[x](../source/rlhf_lab/main.py.md)\n\n```\n[y](../z.py)\n```\n"
    assert linked == ["rlhf_lab/main.py"]


def test_a_source_page_shows_the_file_or_the_names_of_a_directory() -> None:
    assert "def run_command" in links.source_page("rlhf_lab/main.py").text
    listing = links.source_page("rlhf_lab/cli")
    assert listing.path == "source/rlhf_lab/cli/README.md" and "- `explain.py`\n" in listing.text


def test_a_list_has_an_empty_line_before_it() -> None:
    text = "Reasons:\n- one\n  goes on\n- two\n\n- three\nEnd:\n1. first\n\n```\nx\n- y\n```\n"
    expected = "Reasons:\n\n- one\n  goes on\n- two\n\n- three\nEnd:\n\n1. first\n\n```\nx\n- y\n```\n"
    assert staging.spaced_lists(text) == expected


def test_text_of_docstrings_is_no_markup() -> None:
    assert page.plain("a_b <x> `c_d` [1]") == r"a\_b &lt;x&gt; `c_d` \[1\]"
    assert page.plain("DPO (arXiv:2305.18290)") == "DPO ([arXiv:2305.18290](https://arxiv.org/abs/2305.18290))"
    assert page.table(["a|b"], [["c\nd"]]) == "| a\\|b |\n| --- |\n| c d |\n"
    documentation = "Return x.\n\nArgs:\n    n, m: counts,\n        at least 1.\nRaises:\n    OSError: no disk."
    assert page.paragraphs(documentation) == (
        "Return x.\n\n**Args:**\n\n- `n, m`: counts, at least 1.\n\n**Raises:**\n\n- `OSError`: no disk.\n"
    )


def test_the_verdict_is_the_bold_sentence_or_the_start_of_the_first_paragraph() -> None:
    assert results.verdict("# Q\n\n**No: it is lower.** One seed.\n") == "No: it is lower."
    assert results.verdict("# Q\n\n`command`\n\n| a |\n\nGold is 0.71 higher. Yes.\n") == "Gold is 0.71 higher. Yes."
    long = "All 2 claims are undecided. " + "X" * results.VERDICT_LENGTH + ". End."
    assert results.verdict(f"# Q\n\n{long}\n") == "All 2 claims are undecided."


def test_seeds_are_read_from_the_page() -> None:
    assert results.seeds("Each of the 3 seeds (0, 1, 2) draws its own facts") == "3"
    assert results.seeds("`python -m rlhf_lab +recipe=x seed=0,1`") == "2"
    assert results.seeds("seed 0; time 84 s") == "1"
    assert results.seeds("") == ""


def test_every_paper_of_a_recipe_is_on_the_page_of_papers() -> None:
    text = papers.page().text
    files = inventory.recipes().values()
    numbers = {number for file in files for number in re.findall(r"arXiv:(\d+\.\d+)", file.read_text(encoding="utf-8"))}
    assert len(numbers) >= 50
    assert not [number for number in numbers if f"https://arxiv.org/abs/{number}" not in text]
    row = next(
        line for line in text.splitlines() if "2310.12036" not in line and "(/recipes/dpo_iterative.yaml)" in line
    )
    assert "/docs/results/dpo_iterative.md" in row


def test_what_a_recipe_takes_from_a_paper_is_its_part_of_the_source() -> None:
    header = {"source": "reward model ensembles (arXiv:2310.02743); weight averaging (WARM, arXiv:2401.12187)"}
    recipe = results.Recipe("r", "r.yaml", "", "", header, ())
    assert papers.subject("2310.02743", recipe) == "reward model ensembles"
    assert papers.subject("2401.12187", recipe) == "weight averaging (WARM)"
    assert papers.subject("1706.04599", recipe) == ""


def test_reference_pages_have_every_command_metric_and_exported_name() -> None:
    headings = re.findall(r"^## (.+)$", commands.page().text, re.M)
    assert headings == sorted(COMMANDS)
    text = metrics.page().text
    assert not [metric.name for metric in of_packages() if f"| `{metric.name}` |" not in text]
    names = re.findall(r"^## (.+)$", python_api.page().text, re.M)
    assert names == list(rlhf_lab.EXPORTS)


@pytest.mark.slow
def test_a_group_has_its_options_and_their_settings() -> None:
    pages = {generated.title: generated.text for generated in settings.group_pages()}
    rollout = pages["rollout"]
    assert all(f"\n## rollout={option}\n" in rollout for option in inventory.options("rollout"))
    assert rollout.count("| `rollout.max_new_tokens` |") == 1, "a setting of both options is listed once"
    assert "| `evaluation.prompts` |" in pages["Sections"]


def test_the_page_of_an_algorithm_has_its_guide_and_its_reference_implementation_in_full() -> None:
    option = settings._algorithm_page("sft")
    guide, reference = (settings.GUIDES / "sft.md").read_text(), (settings.REFERENCES / "sft.py").read_text()
    assert option.text.startswith(f"{guide}\n```python\n{reference}```\n")
    assert option.path not in {committed.path for committed in staging.committed()}
    assert "| `algorithm.only_correct` |" in option.text
    linked: list[str] = []
    assert "](../source/tests/reference/sft.py.md)" in links.rewritten(option, linked.append)
    assert {"docs/results/model_scale.md", "recipes/sft.yaml"} <= set(linked)


def test_every_reference_implementation_has_a_guide_that_names_settings_of_its_algorithm() -> None:
    references = {path.stem for path in settings.REFERENCES.glob("[a-z]*.py")}
    guides = {path.stem: path.read_text(encoding="utf-8") for path in settings.GUIDES.glob("*.md")}
    assert guides.keys() == references == {"sft", "reward_model", "dpo", "ppo", "grpo"}
    for option, guide in guides.items():
        known = {field.name for field in fields(registry.settings_class("algorithm", option))}
        named = set(re.findall(r"`algorithm\.(\w+)", guide))
        assert named and not named - known, option
        [(key, values)] = re.findall(r"`([\w.]+)` with `(.+) \(model\.tuned\)`", guide)
        shown = next(setting for setting in settings.settings_of("algorithm", option) if setting.key == key)
        assert values == f"{literal(shown.default)} → {literal(shown.now)}", option


def test_a_reference_implementation_is_one_page_that_imports_only_torch() -> None:
    for path in settings.REFERENCES.glob("[a-z]*.py"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 200, path.name
        imported = set(re.findall(r"^(?:from|import) (\w+)", text, re.M))
        assert imported - set(sys.stdlib_module_names) == {"torch"}, path.name


def test_the_navigation_lists_the_pages_of_a_directory() -> None:
    pages = {
        path: Page(path, title, "", section)
        for path, title, section in (("a/x.md", "X", ""), ("a/y.md", "Y", "Topic"), ("b.md", "B", ""))
    }
    nav = staging.expanded([{"A": "a/"}, {"B": ["b.md", "a/"]}], pages)
    lines = [{"X": "a/x.md"}, {"Topic": [{"Y": "a/y.md"}]}]
    assert nav == [{"A": lines}, {"B": ["b.md", *lines]}]


def test_a_figure_of_a_notebook_is_on_its_page_and_its_text_is_not(tmp_path: Path) -> None:
    figure = {"image/svg+xml": "<svg>\n\n<path/></svg>", "text/plain": "<IPython.core.display.SVG object>"}
    output = {"output_type": "execute_result", "data": figure}
    # An empty line would end the block of HTML.
    assert list(tutorials._output(output)) == ['<div class="output">\n<svg>\n<path/></svg>\n</div>']


def test_pages_of_a_deleted_pack_leave_the_navigation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(staging, "ROOT", tmp_path)
    assert staging.expanded([{"Speech": "speech/tts.md"}, "running.md"], {}) == ["running.md"]
