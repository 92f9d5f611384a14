"""The mirror counts what its page says it counts, on a package small enough to count by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import mirror
import pytest

FILES = {
    "__init__.py": '"""A package."""\n',
    "config/__init__.py": "",
    "config/root.py": """\
'''Whether this docstring names its subject: it does not.'''

from rlhf_lab.packs.speech import clips

LIMIT = 3  # the folder of a reply
'''Of the limit, the share.'''


class Item:
    def run(self, reply):
        # noqa: E501
        return reply
""",
    "packs/__init__.py": "",
    "packs/speech/__init__.py": "",
    "packs/speech/clips.py": """\
class Item:
    '''A clip.'''

    class _Part:
        def __len__(self):
            import rlhf_lab.config.root, rlhf_lab.packs.speech
            return 1
""",
    "packs/judging/__init__.py": "",
    "packs/judging/grades.py": """\
from rlhf_lab.packs.speech.clips import Item

class _Part(Item):
    async def read_reply_of_reply(self):
        pass
""",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "before" / "rlhf_lab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "before"


@pytest.fixture
def tables(checkout):
    read = mirror.read_checkout(str(checkout))
    assert read.label == "before"
    return mirror.measure(read)


def expect(tables, counted):
    assert {name: tables["Figures"][name] for name in counted} == counted


def test_sizes_of_core_packs_and_subpackages(tables):
    expect(
        tables,
        {
            "files": 8,
            "lines": 25,
            "files, core": 4,  # three __init__.py and config/root.py
            "lines, core": 13,  # 1 + 12
            "files, pack speech": 2,
            "lines, pack speech": 7,
            "files, pack judging": 2,
            "lines, pack judging": 5,
            "subpackages (directories with Python files)": 5,
            "lines of the largest subpackage": 12,
            "longest file": "config/root.py",
            "lines, longest file": 12,
            "longest function": "packs/speech/clips.py: __len__",
            "lines, longest function": 3,
            "lines, config/root.py": 12,
        },
    )
    assert tables["Lines of each subpackage"] == {
        "rlhf_lab": 1,
        "rlhf_lab/config": 12,
        "rlhf_lab/packs": 0,
        "rlhf_lab/packs/judging": 5,
        "rlhf_lab/packs/speech": 7,
    }


def test_import_edges_say_which_side_imports_which(tables):
    expect(
        tables,
        {
            "import edges between subpackages": 3,
            "import edges, core → pack": 1,
            "import edges, pack → core": 1,
            "import edges, pack → pack": 1,
        },
    )
    assert tables["Imports from core to packs"] == {"rlhf_lab/config → rlhf_lab/packs/speech": "config/root.py"}


def test_class_names_are_counted_wherever_a_class_is_defined(tables):
    expect(tables, {"class names that stand for several classes": 2, "classes with such a name": 4})
    assert tables["Class names that stand for several classes"] == {
        "Item": "config/root.py, packs/speech/clips.py",
        "_Part": "packs/judging/grades.py, packs/speech/clips.py",
    }


def test_how_the_text_reads(tables):
    figures = tables["Figures"]
    # Code lines of root.py: the import, LIMIT and the string below it, class, def, return. A docstring that opens its
    # module, class or function is none. clips.py: 2 class, def, import, return. grades.py: import, class, def, pass.
    assert figures["AST nodes per code line"] == pytest.approx(figures["AST nodes"] / (6 + 5 + 4))
    # Non-blank lines: 1, 8 of root.py, 6 of clips.py and 4 of grades.py. A comment for a tool is not one for a reader.
    assert figures["comments per 100 non-blank lines"] == pytest.approx(100 * 1 / 19)
    assert figures["docstrings that begin with Of, Whether, What, …"] == 2
    assert figures["one-word function names, %"] == pytest.approx(100 * 1 / 3)  # run; not __len__, which Python names


def test_nodes_of_docstrings_are_left_out():
    # Module, Assign, Name, its Store context and Constant; the docstring's Expr and Constant are not counted.
    file = mirror.SourceFile(mirror.Path("a.py"), '"""A module."""\nx = 1\n')
    assert (file.count_code_nodes(), file.count_code_lines()) == (5, 1)


def test_private_words(tables):
    # Identifiers: the parameter `reply`, and once `read_reply_of_reply`. Text: folder, reply, share.
    expect(
        tables,
        {
            "private words per 1,000 lines, identifiers": pytest.approx(2 / 0.025),
            "private words per 1,000 lines, docstrings and comments": pytest.approx(3 / 0.025),
        },
    )
    assert tables["Private words"] == {
        "reply (response)": 3,
        "folder (dir)": 1,
        "share (fraction)": 1,
    }


def test_private_words_of_tests_and_documentation(checkout):
    pages = {
        "README.md": "the share of replies\n\n",  # two private words
        "docs/world.md": "a fraction\n",
        "docs/design/001.md": "a folder\n",  # design notes and results are not counted
        "docs/results/page.md": "a folder\n",
        "tests/unit/test_a.py": '"""The reply."""\n\n\nreply = "reply"\n',
    }
    for name, text in pages.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expect(
        mirror.measure(mirror.read_checkout(str(checkout))),
        {
            "private words per 1,000 lines, docstrings and comments of tests": pytest.approx(1000 * 1 / 4),
            "private words per 1,000 lines, documentation": pytest.approx(1000 * 2 / 3),
            "private words per 1,000 words, documentation": pytest.approx(1000 * 2 / 6),
        },
    )


def test_before_and_after_in_one_table(checkout, tmp_path, monkeypatch, capsys):
    after = tmp_path / "after"
    (after / "rlhf_lab").mkdir(parents=True)
    (after / "rlhf_lab" / "main.py").write_text("x = 1\n", encoding="utf-8")
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    options = ["--against", str(checkout), "--json", str(figures), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", ["tests/mirror.py", str(after), *options])
    mirror.main()

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["Figures", "before (before)", "after (after)"]
    assert ["lines", "25", "1"] in rows
    assert ["lines, pack speech", "7", "–"] in rows
    assert json.loads(figures.read_text(encoding="utf-8"))["after (after)"]["Figures"]["files"] == 1
    assert f"`python tests/mirror.py {after} --against {checkout}" in page.read_text(encoding="utf-8")


def test_a_git_revision_is_measured_as_it_was_committed(checkout, monkeypatch, tables):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=checkout, check=True)
    (checkout / "rlhf_lab" / "__init__.py").write_text("x = 1\ny = 2\n", encoding="utf-8")
    monkeypatch.setattr(mirror, "ROOT", checkout)
    assert mirror.measure(mirror.read_checkout("HEAD")) == tables


def test_a_source_that_cannot_be_measured_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="no Python files in rlhf_lab/"):
        mirror.read_checkout(str(tmp_path))
    with pytest.raises(SystemExit, match="no_such_revision is neither a directory nor a git revision"):
        mirror.read_checkout("no_such_revision")
