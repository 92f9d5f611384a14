"""The wheel carries conf/, recipes/ and the report's templates, and its command works from any directory."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import sizes
import yaml

import rlhf_lab

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, unpacked as pip does."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it comes with .[dev]")
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


def command(installed: Path, elsewhere: Path, *arguments: str, timeout_s: float = 120) -> str:
    """Output of the console script's entry point, run on the unpacked wheel from another directory."""
    code = "import rlhf_lab.__main__ as m; print(m.__file__); m.main()"
    environment = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    first, _, rest = done.stdout.partition("\n")
    assert Path(first).is_relative_to(installed), f"ran {first}, not the wheel"
    return rest


def test_wheel_holds_every_file_of_the_package_and_the_console_script(installed: Path) -> None:
    sources = {
        "rlhf_lab": [p for p in (ROOT / "rlhf_lab").rglob("*") if p.is_file() and "__pycache__" not in p.parts],
        "rlhf_lab/conf": list((ROOT / "conf").rglob("*.yaml")),
        "rlhf_lab/recipes": list((ROOT / "recipes").rglob("*.yaml")),
    }
    assert len(sources["rlhf_lab/conf"]) >= 15 and len(sources["rlhf_lab/recipes"]) >= 5
    for target, files in sources.items():
        base = ROOT / (target if target == "rlhf_lab" else Path(target).name)
        missing = [p for p in files if not (installed / target / p.relative_to(base)).is_file()]
        assert not missing, f"not in the wheel: {missing}"
    assert (installed / "rlhf_lab/reports/templates/report.html.j2").is_file()
    (entry_points,) = installed.glob("rlhf_lab-*.dist-info/entry_points.txt")
    assert "rlhf-lab = rlhf_lab.__main__:main" in entry_points.read_text()


def test_recipes_are_listed_and_composed_from_another_folder(installed: Path, tmp_path: Path) -> None:
    listed = command(installed, tmp_path)
    assert "study/buffers" in listed and "dpo_iterative" in listed
    composed = command(installed, tmp_path, "+recipe=dpo", "--cfg", "job")
    assert "kind: dpo" in composed and "policy: sft" in composed
    assert not list(tmp_path.iterdir()), "listing and composing write nothing"


@pytest.mark.slow
def test_the_demo_runs_without_a_checkout_and_without_a_network(installed: Path, tmp_path: Path) -> None:
    """At a smaller size; flags and overrides come after the demo's own, so they win."""
    printed = command(installed, tmp_path, "demo", *sizes.overrides("dpo"), timeout_s=600)
    assert "about a minute" in printed and "Next:" in printed
    (report,) = (line.split()[1] for line in printed.splitlines() if line.startswith("report "))
    directory = (tmp_path / report).parent
    assert (tmp_path / report).is_file() and (directory / "log.txt").is_file()
    assert "one-pass DPO" in (directory / "log.txt").read_text(encoding="utf-8")
    assert "algorithm.beta" in command(installed, tmp_path, "explain", "algorithm=dpo")


def test_the_source_archive_has_the_documents_and_the_package_its_marker_of_types(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the archive; it comes with .[dev]")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "AGENTS.md",
        "CITATION.cff",
        "rlhf_lab/py.typed",
        "docs/mkdocs.yml",
    } <= names


def test_the_citation_names_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == rlhf_lab.__version__
    assert citation["license"] == "Apache-2.0" and citation["cff-version"] == "1.2.0"
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {citation['version']} ({citation['date-released']})" in changelog
