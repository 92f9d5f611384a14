"""Pages of the documentation site that are generated: what they contain, and how links and lists are rewritten."""

from __future__ import annotations

import re
import sys
from dataclasses import fields

from docs_site import commands, links, metrics, papers, python_api, settings, staging

import rlhf_lab
from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.config import inventory, registry
from rlhf_lab.config.overrides import literal
from rlhf_lab.core.metrics import of_packages


def test_every_paper_of_a_recipe_is_on_the_page_of_papers() -> None:
    text = papers.page().text
    files = inventory.recipes().values()
    numbers = {number for file in files for number in re.findall(r"arXiv:(\d+\.\d+)", file.read_text(encoding="utf-8"))}
    assert len(numbers) >= 50
    assert not [number for number in numbers if f"https://arxiv.org/abs/{number}" not in text]
    row = next(
        line for line in text.splitlines() if "2310.12036" not in line and "(/recipes/dpo_iterative.yaml)" in line
    )
    assert "/docs/results/archive/dpo_iterative.md" in row


def test_reference_pages_have_every_command_metric_and_exported_name() -> None:
    headings = re.findall(r"^## (.+)$", commands.page().text, re.M)
    assert headings == sorted(COMMANDS)
    text = metrics.page().text
    assert not [metric.name for metric in of_packages() if f"| `{metric.name}` |" not in text]
    names = re.findall(r"^## (.+)$", python_api.page().text, re.M)
    assert names == list(rlhf_lab.EXPORTS)


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
