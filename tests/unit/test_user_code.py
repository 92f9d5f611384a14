"""Python files of the user, and where the lab's own YAML lies."""

from __future__ import annotations

import sys

import pytest

from rlhf_lab.config.inventory import directory, read_yaml
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.user_code import files_behind, load_from_file
from rlhf_lab.stages.code_digest import digests


def test_what_a_file_names_is_loaded_anew_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    file.write_text("from beside import N\nvalue = N + 1\n")
    (tmp_path / "beside.py").write_text("N = 1\n")
    assert load_from_file("setting", f"{file}:value") == 2
    (tmp_path / "beside.py").write_text("N = 5\n")
    assert load_from_file("setting", f"{file}:value") == 6
    assert [path.name for path in files_behind(f"{file}:value")] == ["beside.py", "mine.py"]


def test_an_edited_module_of_a_directory_is_loaded_and_digested_anew(tmp_path):
    """In a notebook, a stage after the edit must not reuse the result of the code before it."""
    inner = tmp_path / "parts" / "inner.py"
    inner.parent.mkdir()
    (tmp_path / "mine.py").write_text("from parts.inner import N\n")
    setting = f"{tmp_path}/mine.py:N"
    seen = []
    for number in (1, 2):
        inner.write_text(f"N = {number}\n")
        seen.append((load_from_file("setting", setting), digests([], files_behind(setting))))
    (before, digest_before), (after, digest_after) = seen
    assert (before, after) == (1, 2) and digest_before != digest_after


def test_a_file_imports_the_modules_next_to_it_and_not_those_of_other_user_code(tmp_path):
    for version in ("first", "second"):
        package = tmp_path / version / "parts"
        package.mkdir(parents=True)
        (tmp_path / version / "namesake.py").write_text(f"NAME = {version!r}\n")
        (package / "__init__.py").write_text("from parts.inner import NAME\n")
        (package / "inner.py").write_text(f"NAME = {version!r}\n")
        (tmp_path / version / "mine.py").write_text(
            "import namesake, parts\ndef names():\n    return namesake.NAME, parts.NAME\n"
        )
    first, second = (load_from_file("x", f"{tmp_path / version}/mine.py:names") for version in ("first", "second"))
    assert (first(), second()) == (("first", "first"), ("second", "second"))
    assert load_from_file("x", f"{tmp_path}/first/mine.py:names")() == ("first", "first")
    places = [sys.path.index(str(tmp_path / version)) for version in ("first", "second")]
    assert places[0] < places[1]
    assert sys.path.count(str(tmp_path / "first")) == 1


def test_what_cannot_be_loaded_is_named_with_its_setting(tmp_path):
    with pytest.raises(ConfigError, match="here: there is no file"):
        load_from_file("here", f"{tmp_path}/mine.py:value")
    assert files_behind(f"{tmp_path}/absent.py:value") == []


def test_the_files_of_conf_are_read_without_the_settings_classes():
    assert read_yaml(directory("conf") / "reward" / "gold.yaml") == {"kind": "gold"}
