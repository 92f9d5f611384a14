"""Code that a digest includes and code that it leaves out, on a small package and on rlhf_lab itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.stages import artifacts, code_digest
from rlhf_lab.stages.code_digest import Reference, differences, digests, edited

ENTRY = '''
"""Builds a thing."""
from __future__ import annotations
from toy import scale
from toy.losses import TABLE
from toy.shapes import Square as Shape
import math

LIMIT = 3

def build(x):
    """Docs."""
    from toy import late
    return TABLE["a"](x) + scale.factor(LIMIT) + late.now() + Shape().area

def report():
    return "unused"
'''
FILES = {
    "__init__": "",
    "entry": ENTRY,
    "losses": "def a(x):\n    return helper(x)\n\ndef helper(x):\n    return x\n\ndef lonely():\n    return 0\n\n"
    "TABLE = {}\nTABLE['a'] = a\n",
    "scale": "def factor(n):\n    return n\n\ndef other(n):\n    return -n\n",
    "late": "VALUE = 1\n\ndef now():\n    return VALUE\n",
    "shapes": "class Base:\n    area = 1\n\nclass Square(Base):\n    pass\n\nclass Circle(Base):\n    pass\n",
}


@pytest.fixture
def fresh(monkeypatch):
    """Forget what was read, before the test and after it."""

    code_digest.forget()
    yield code_digest.forget
    code_digest.forget()


@pytest.fixture
def toy(tmp_path, monkeypatch, fresh):
    """The package `toy`, and what its entry point's digests are after an edit of one file."""
    directory = tmp_path / "toy"
    directory.mkdir()
    for name, text in FILES.items():
        (directory / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    def after(name: str = "", old: str = "", new: str = "") -> dict[str, str]:
        if name:
            path = directory / f"{name}.py"
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        fresh()
        return digests([Reference("toy.entry", "build")])

    return after


@pytest.mark.parametrize(
    ("name", "old", "new", "changed"),
    [
        ("entry", "LIMIT = 3", "LIMIT = 4", ["toy/entry.py (LIMIT)"]),
        ("losses", "return x\n", "return 2 * x\n", ["toy/losses.py (helper)"]),
        ("losses", "TABLE['a'] = a", "TABLE['a'] = lonely", ["toy/losses.py (TABLE, a, helper, lonely)"]),
        ("scale", "return n\n", "return n + 1\n", ["toy/scale.py (factor)"]),
        ("late", "VALUE = 1", "VALUE = 2", ["toy/late.py (VALUE)"]),
        ("shapes", "area = 1", "area = 2", ["toy/shapes.py (Base)"]),
        ("scale", "def factor", "print('loaded')\ndef factor", ["toy/scale.py (top level)"]),
    ],
)
def test_an_edit_on_the_way_is_seen_and_named(toy, name, old, new, changed):
    before = toy()
    assert differences(before, toy(name, old, new)) == changed


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("entry", '"unused"', '"still unused"'),
        ("entry", '"""Docs."""', '"""Other docs."""'),
        ("losses", "return 0", "return 1"),
        ("losses", "    return helper(x)", "    # why\n    return helper( x )"),
        ("scale", "return -n", "return -2 * n"),
        ("shapes", "class Circle(Base):\n    pass", "class Circle(Base):\n    area = 9"),
    ],
)
def test_comments_docstrings_and_what_nothing_refers_to_do_not_count(toy, name, old, new):
    assert toy() == toy(name, old, new)


def test_a_file_of_ones_own_counts_whole_with_what_lies_beside_it(tmp_path, fresh):
    reward, siblings = tmp_path / "my_reward.py", tmp_path / "words.py"
    reward.write_text("import numpy\nimport words\n\ndef score(p, r):\n    return words.count(r)\n")
    siblings.write_text("def count(r):\n    return len(r)\n")
    before = digests([], [reward])
    assert set(before) == {"my_reward.py:score", "words.py:count"}
    fresh()
    siblings.write_text("def count(r):\n    return -len(r)\n")
    assert differences(before, digests([], [reward])) == ["words.py (count)"]


@pytest.mark.parametrize("importing", ["from toy.shapes import *", "from .shapes import *", "from toy.all import *"])
def test_names_of_a_star_import_are_followed(toy, tmp_path, importing):
    entry = tmp_path / "toy" / "entry.py"
    named = "from toy.shapes import Square as Shape"
    entry.write_text(entry.read_text().replace(named, f"{importing}\nShape = Square"))
    (tmp_path / "toy" / "all.py").write_text("from toy.shapes import *\n")
    before = toy()
    assert differences(before, toy("shapes", "area = 1", "area = 2")) == ["toy/shapes.py (Base)"]


def test_an_edit_while_a_process_runs_is_noticed(toy, tmp_path):
    labels = toy()
    assert edited(labels) == []
    (tmp_path / "toy" / "late.py").write_text("VALUE = 7\n\ndef now():\n    return VALUE\n")
    assert edited(labels) == ["toy/late.py"]


def keys() -> dict[str, str]:
    """Stage → key of dpo_iterative and of all that it starts from."""
    return {stage.recipe: stage.key for stage in planned("dpo_iterative", "data=mini_hh_small").upstream()}


def keys_after_edit(monkeypatch, file: str, old: str, new: str) -> dict[str, str]:
    """The same, with a line of the lab's own source read as another. All other files stay as this process read them."""
    path = code_digest.PACKAGE / file
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{file} has no line {old!r}"
    original = Path.read_bytes
    edited_text = text.replace(old, new).encode()
    module = "rlhf_lab." + file.removesuffix(".py").replace("/", ".")

    def forget_file() -> None:
        if module in code_digest._READ:
            code_digest.forget(module)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda self: edited_text if self == path else original(self))
        forget_file()
        edited_keys = keys()
    forget_file()
    return edited_keys


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("losses/preference.py", "beta * (", "2 * beta * (", {"dpo", "dpo_iterative"}),
        ("losses/reward_model.py", "logsigmoid(", "-logsigmoid(", {"reward_model", "dpo", "dpo_iterative"}),
        (
            "algorithms/preference/dpo_iterative.py",
            "self.round_steps = max(1,",
            "self.round_steps = max(2,",
            {"dpo_iterative"},
        ),
        ("environments/dialogue/gold.py", "return ", "return 0 or ", {"sft", "reward_model", "dpo", "dpo_iterative"}),
        ("training/loop.py", "return ", "return 0 or ", {"sft", "reward_model", "dpo", "dpo_iterative"}),
        ("reports/report.py", "return ", "return 0 or ", set()),
        ("algorithms/policy_gradient/ppo.py", "return ", "return 0 or ", set()),
    ],
)
def test_an_edit_of_the_lab_rebuilds_what_it_decides_and_what_starts_from_that(monkeypatch, file, old, new, changed):
    before = keys()
    after = keys_after_edit(monkeypatch, file, old, new)
    assert {name for name in before if before[name] != after[name]} == changed


@pytest.mark.parametrize("recipe", ["ppo", "rm_report"])
def test_what_a_metric_is_called_decides_no_result(recipe):
    stages = list(planned(recipe, "model=micro").upstream())
    assert stages
    for stage in stages:
        assert stage.code
        assert not [label for label in stage.code if label.partition(":")[0].endswith("metrics.py")], stage.recipe


@pytest.mark.slow
def test_the_source_of_ones_own_reward_counts_and_what_it_imports(tmp_path, monkeypatch, fresh):
    monkeypatch.chdir(tmp_path)
    reward, siblings = tmp_path / "my_rewards.py", tmp_path / "words.py"
    reward.write_text(
        "import words\n\ndef brevity(prompts, responses):\n    return [-words.count(r) for r in responses]\n"
    )
    siblings.write_text("def count(text):\n    return len(text.split())\n")

    def keys() -> dict[str, str]:
        fresh()
        mine = ("reward=callable", "reward.terms.callable.function=my_rewards.py:brevity", "needs.reward=null")
        return {stage.recipe: stage.key for stage in planned("grpo", "data=mini_hh_small", *mine).upstream()}

    before = keys()
    reward.write_text(reward.read_text() + "# a remark\n")
    assert keys() == before
    siblings.write_text("def count(text):\n    return len(text)\n")
    after = keys()
    assert before["grpo"] != after["grpo"]
    assert before["sft"] == after["sft"]


def test_what_is_no_python_counts_byte_by_byte(tmp_path, fresh):
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    before = digests([], [broken])
    fresh()
    broken.write_text("def g(:\n")
    assert before.keys() == digests([], [broken]).keys()
    assert before != digests([], [broken])


def test_modules_of_the_same_name_next_to_other_files_are_other_modules(tmp_path, fresh):
    for version in ("first", "second"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "mine.py").write_text("import words\nN = words.N\n")
        (tmp_path / version / "words.py").write_text(f"N = {version!r}\n")
    first, second, again = (digests([], [tmp_path / name / "mine.py"]) for name in ("first", "second", "first"))
    assert first == again
    assert first["mine.py:N"] == second["mine.py:N"] and first["words.py:N"] != second["words.py:N"]


def test_two_modules_of_one_name_in_one_stage_are_refused(tmp_path, monkeypatch):
    files = [tmp_path / directory / "mine.py" for directory in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        file.write_text("")
    found = [files[0], tmp_path / "a" / ".." / "a" / "mine.py"]  # one file of two functions
    monkeypatch.setattr(artifacts, "contributed_objects", lambda kind: [lambda config: found])
    assert artifacts._code_files(None) == found
    found.append(files[1])
    with pytest.raises(ConfigError, match=r"a/mine\.py and .*b/mine\.py are both imported as mine.*rename one"):
        artifacts._code_files(None)
