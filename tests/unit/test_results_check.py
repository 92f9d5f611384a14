"""`results check`: pages whose code is as it was, has changed, or is not recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_lab.cli.commands import results_command
from rlhf_lab.cli.results import CHANGED, CURRENT, UNKNOWN, check_pages, summary
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages.code_digest import Reference, digests, package_definitions

FILE = "rlhf_lab/losses/preference.py"


@pytest.fixture(scope="module")
def definitions() -> dict[str, dict[str, str]]:
    """File → name → digest, for the code of the DPO loss."""
    files: dict[str, dict[str, str]] = {}
    for label, digest in digests([Reference("rlhf_lab.losses.preference", "dpo")]).items():
        file, _, name = label.partition(":")
        files.setdefault(file, {})[name] = digest
    assert "dpo" in files[FILE]
    return files


def write_page(directory: Path, name: str, definitions: dict[str, dict[str, str]]) -> None:
    """Write a page of results and the file with its definitions."""
    (directory / f"{name}.md").write_text(
        f"# Which?\n\n- Definitions of the code: [{name}_code.json]({name}_code.json).\n"
    )
    (directory / f"{name}_code.json").write_text(json.dumps({"digest": "", "definitions": definitions}))


def test_pages_with_changed_code_are_listed(tmp_path, definitions, capsys):
    write_page(tmp_path, "current", definitions)
    write_page(tmp_path, "moved", {"rlhf_lab/elsewhere.py": definitions[FILE], "counting/world.py": {"build": "00"}})
    write_page(tmp_path, "changed", {**definitions, FILE: {**definitions[FILE], "dpo": "0" * 16, "removed": "1" * 16}})
    write_page(tmp_path, "alone", definitions)
    (tmp_path / "alone_code.json").unlink()
    (tmp_path / "old.md").write_text("# Which?\n\nNobody knows.\n")
    pages = {page.name: page for page in check_pages(tmp_path)}
    states = {name.removesuffix(".md"): page.state for name, page in pages.items()}
    assert states == {"alone": UNKNOWN, "changed": CHANGED, "current": CURRENT, "moved": CURRENT, "old": UNKNOWN}
    assert pages["changed.md"].remark == "changed since: losses/preference.py (dpo, removed)"
    assert pages["old.md"].remark == "made before provenance was recorded"
    assert pages["alone.md"].remark == "alone_code.json is missing or damaged; it belongs next to the page"
    results_command(["check", str(tmp_path)])  # informs and raises nothing
    out = capsys.readouterr().out
    assert "changed.md  changed since: losses/preference.py (dpo, removed)" in out
    assert summary(list(pages.values())) in out.replace("\n", " ")


def test_all_definitions_have_the_digests_of_runs(definitions):
    present = package_definitions()
    assert {(name, digest) for file in definitions.values() for name, digest in file.items()} <= present


def test_wrong_arguments_say_what_is_needed(tmp_path):
    for arguments in ([], ["list"], ["check", "a", "b"]):
        with pytest.raises(ConfigError, match=r"results check \[DIR\]"):
            results_command(arguments)
    with pytest.raises(ConfigError, match=r"has no pages \(\*\.md\)"):
        results_command(["check", str(tmp_path)])
