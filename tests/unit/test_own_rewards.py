"""A reward of the user: a function in a file, and a plug-in; as docs/rewards.md shows them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import checked, planned, said

import rlhf_lab
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.types import Corpus
from rlhf_lab.core.user_code import files_behind
from rlhf_lab.data.file_settings import Verifiable
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.external.settings import PythonCallable
from rlhf_lab.rewards.external.trial import trial_problems
from rlhf_lab.rewards.graph import GraphReward
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.stages import preflight

RUN: Any = SimpleNamespace(corpus=Corpus("toy", [], [], ""))
DOCS = Path(rlhf_lab.__file__).parents[1] / "docs" / "rewards.md"


def documented(name: str) -> str:
    """The code block of the documentation under a comment that names it."""
    return DOCS.read_text(encoding="utf-8").split(f"<!-- {name} -->\n```")[1].partition("\n")[2].split("```")[0]


def scored(settings: PythonCallable) -> list[float]:
    return registry.build("reward", settings, RUN).score_episodes(said(["p"] * 2, ["one", "one two"])).total_N.tolist()


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def installed(directory: Path, entry_points: str) -> None:
    """Make a directory on the path look like an installed package."""
    info = directory / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_a_function_of_a_file(here):
    (here / "my_rewards.py").write_text(documented("my_rewards.py"))
    more = ("reward=callable", "reward.terms.callable.function=my_rewards.py:brevity", "needs.reward=null")
    settings = checked("grpo", *more).reward.terms["callable"]
    assert scored(settings) == [-0.1, -0.2]
    (here / "my_rewards.py").write_text(documented("my_rewards.py").replace("/ 10", "/ 20"))
    assert scored(settings) == [-0.05, -0.1], "an edit counts at once"


def test_a_file_imports_its_neighbours_and_they_are_its_source(here):
    (here / "own").mkdir()
    (here / "own" / "my_words.py").write_text("import json\ndef count(text): return len(text.split())\n")
    (here / "own" / "other.py").write_text("raise RuntimeError('not imported')\n")
    file = here / "own" / "rewards.py"
    file.write_text("from my_words import count\ndef words(prompts, replies): return [count(r) for r in replies]\n")
    settings = PythonCallable(function="own/rewards.py:words")
    assert [path.name for path in files_behind(settings.function)] == ["my_words.py", "rewards.py"]
    assert scored(settings) == [1, 2]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("gone.py:f", r"there is no file gone\.py \(relative to"),
        ("mine.py:wrong", r"mine\.py has no function wrong; it has right"),
        ("mine.py:NUMBER", r"function=mine\.py:NUMBER is int, not a function"),
        ("broken.py:f", r"function=broken\.py:f cannot be imported \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(here, function, message):
    (here / "mine.py").write_text("NUMBER = 3\ndef right(prompts, replies): return [0] * len(replies)\n")
    (here / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=message):
        registry.build("reward", PythonCallable(function=function), RUN)


def test_a_function_that_fails_names_file_and_line(here):
    (here / "mine.py").write_text("def bad(prompts, replies):\n    return replies[0].words\n")
    reward = registry.build("reward", PythonCallable(function="mine.py:bad"), RUN)
    with pytest.raises(LabError, match=r"reward mine\.py:bad failed in mine\.py, line 2: AttributeError: 'str'"):
        reward.score_episodes(said(["p"], ["a"]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "function is not set; write reward.terms.callable.function="),
        (["function=a.py"], r"function=a\.py is not FILE\.py:NAME"),
    ],
)
def test_wrong_settings_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        checked("ppo", "reward=callable", *(f"reward.terms.callable.{override}" for override in overrides))


def test_a_plug_in_brings_a_term_with_settings(tmp_path):
    (tmp_path / "brevity_plugin").mkdir()
    for name in ("brevity_plugin/__init__.py", "brevity_plugin/reward.py"):
        (tmp_path / name).write_text(documented(name))
    declared = documented("pyproject.toml of the plug-in").replace('[project.entry-points."rlhf_lab.plugins"]', "")
    installed(tmp_path, "[rlhf_lab.plugins]" + declared.replace('"', ""))
    code = (
        "import sys\n"
        "from rlhf_lab.config import command_line, registry\n"
        "words = ['+recipe=ppo', 'reward=[bt,brevity]', 'reward.terms.brevity.words=20']\n"
        "terms = command_line.check_command(words).configs[0].reward.terms\n"
        "assert 'torch' not in sys.modules\n"
        "print(list(terms), registry.build('reward', terms['brevity'], None)(['p'], ['a b']).total_N)\n"
        "try: command_line.check_command([*words, 'reward.terms.brevity.wrods=2'])\n"
        "except ValueError as error: print(error)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(rlhf_lab.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "['bt', 'brevity'] [-0.1]"
    assert "did you mean words" in done.stdout


def with_columns(here: Path, signature: str) -> Any:
    """A reward that gives 1 if the response is the row's answer, from a file with this signature."""
    body = "columns['answer']" if "**" in signature else "answer"
    (here / "mine.py").write_text(
        f"def right({signature}):\n    return [float(r == a) for r, a in zip(replies, {body}, strict=True)]\n"
    )
    metadata = {"p": {"answer": "4", "subject": "sums"}, "q": {"answer": "5"}}
    run = SimpleNamespace(corpus=Corpus("toy", [], [], "", metadata=metadata))
    return registry.build("reward", PythonCallable(function="mine.py:right"), run), run.corpus


SIGNATURES = ("prompts, replies, answer", "prompts, replies, *, answer", "prompts, replies, **columns")


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_function_takes_columns_of_the_data(here, signature):
    reward, corpus = with_columns(here, signature)
    assert reward.score_episodes(corpus.episodes(["p", "q"], ["4", "4"])).total_N.tolist() == [1.0, 0.0]
    assert reward.score_episodes(corpus.episodes(["unknown"], ["4"])).total_N.tolist() == [0.0]


def test_a_column_that_the_data_lack_is_named(here):
    with pytest.raises(ConfigError, match=r"takes 'grade', which .*\(it has: 'answer', 'subject'\)"):
        with_columns(here, "prompts, replies, answer, grade")
    with pytest.raises(ConfigError, match="takes 'grade', which"):  # also if it receives all columns
        with_columns(here, "prompts, replies, answer, grade, **columns")
    with_columns(here, "prompts, replies, answer, grade=None")


FAULTS = {
    "raises": ("    return [1 / 0 for r in responses]", r"failed in mine\.py, line 3: ZeroDivisionError: division by"),
    "inside a library": ("    return json.loads('{')", r"failed in mine\.py, line 3: JSONDecodeError"),
    "short": ("    return [1.0]", "returned 1 value for 2 responses; expected one number per response"),
    "text": ("    return ['good' for r in responses]", "returned str 'good'"),
    "NaN": ("    return [float('nan') for r in responses]", r"returned NaN for 2 of 2 rows \(100 %\).*or None"),
    "nothing": ("    pass", "returned None for 2 responses"),
}


def trial(here: Path, body: str, signature: str = "prompts, responses", **settings: Any) -> str:
    (here / "mine.py").write_text(f"import json\ndef mine({signature}):\n{body}\n")
    return "\n".join(trial_problems(PythonCallable(function="mine.py:mine", **settings), MiniHH()))


@pytest.mark.parametrize(("body", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_show_on_two_rows_before_a_run(here, body, message):
    assert re.search(message, trial(here, body))
    tolerated = trial(here, body, on_error="abstain")
    assert bool(tolerated) == ("failed in" not in message), "only what it raises may pass with the run"


def test_a_function_that_hangs_is_given_up(here):
    hangs = "    import time\n    time.sleep(60)"
    assert "took longer than timeout_s=0.2" in trial(here, hangs, timeout_s=0.2)


def test_the_trial_is_part_of_the_check_of_a_run(here):
    (here / "mine.py").write_text("def mine(prompts, responses):\n    return [1.0]\n")
    own = ("reward=callable", "reward.terms.callable.function=mine.py:mine", "needs.reward=null")
    problems = preflight.problems(planned("grpo", *own, f"outputs={here / 'out'}"))
    assert len(problems) == 1 and "returned 1 value for 2 responses" in problems[0]


def test_data_of_a_hub_are_not_fetched_for_the_trial(here):
    (here / "mine.py").write_text(
        "def plain(prompts, responses):\n    return [1.0]\n"
        "def right(prompts, responses, *, answer):\n    return [len(a) for a in answer]\n"
    )
    hub = Verifiable(path="owner/name")
    assert "1 value for 2" in trial_problems(PythonCallable(function="mine.py:plain"), hub)[0]
    assert trial_problems(PythonCallable(function="mine.py:right"), hub) == [], "its columns are not known yet"


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("completions, **kwargs", "completions"),
        ("completions, answer, **kwargs", "completions"),
        ("responses, prompts", "responses"),
    ],
)
def test_signatures_of_trl_are_called_by_name(here, signature, body):
    (here / "mine.py").write_text(f"def mine({signature}):\n    return [len(r) for r in {body}]\n")
    run = SimpleNamespace(corpus=Corpus("toy", [], [], "", answers={"question": "4"}))
    reward = registry.build("reward", PythonCallable(function="mine.py:mine"), run)
    assert reward.score_episodes(said(["question"], ["abc"])).total_N.tolist() == [3.0]


@pytest.mark.parametrize(
    ("signature", "received"),
    [
        ("completions, **kwargs", ["level", "prompts"]),
        ("prompts, responses, **kwargs", ["completions", "level"]),
        ("questions, replies, **kwargs", ["completions", "level", "prompts", "responses"]),
    ],
)
def test_a_column_with_the_name_of_a_text_is_not_passed_twice(here, signature, received):
    (here / "mine.py").write_text(f"def mine({signature}):\n    assert not kwargs, sorted(kwargs)\n")
    columns = {"prompts": ["x"], "responses": ["y"], "completions": ["z"], "level": 1}
    corpus = Corpus("toy", [], [], "", metadata={"question": columns})
    reward = registry.build("reward", PythonCallable(function="mine.py:mine"), SimpleNamespace(corpus=corpus))
    with pytest.raises(LabError, match=re.escape(f"AssertionError: {received}")):
        reward.score_episodes(corpus.episodes(["question"], ["abc"]))


@pytest.mark.parametrize(
    ("body", "second"),
    [
        ("return torch.tensor([1.0, 2.0], dtype=torch.bfloat16, requires_grad=True)", 2.0),
        ("return [torch.tensor(1.0), None]", float("nan")),
        ("return [np.array(1.0), np.float32(2.0)]", 2.0),
        ("return [np.isclose(1, 1), None]", float("nan")),
        ("yield from [1.0, 2.0]", 2.0),
        ("return await async_map(float, [1, 2])", 2.0),
    ],
)
def test_tensors_generators_and_coroutines_are_read(here, body, second):
    (here / "mine.py").write_text(
        "import numpy as np, torch\nasync def async_map(function, values):\n    return map(function, values)\n"
        f"{'async ' if 'await' in body else ''}def mine(prompts, responses):\n    {body}\n"
    )
    assert scored(PythonCallable(function="mine.py:mine")) == pytest.approx([1.0, second], nan_ok=True)


def test_the_note_of_a_resumed_run_counts_on(here):
    """Before the stop: 1 of 3 is NaN, then a failed call of 1. After it 1 of 1 is scored: 2 of 5 unscored."""
    (here / "mine.py").write_text(
        "def mine(prompts, responses):\n"
        "    if 'fail' in responses: raise ValueError('service down')\n"
        "    return [float('nan') if r == 'nan' else 1.0 for r in responses]\n"
    )

    def graph(notes):
        reward = registry.build("reward", PythonCallable(function="mine.py:mine"), RUN)
        term = CheckedReward("mine", reward, on_error="abstain", note=notes.append)
        settings = RewardGraph(terms={"mine": PythonCallable(function="mine.py:mine")})
        return GraphReward({"mine": term}, settings)

    notes_after: list[str] = []
    before, after = graph([]), graph(notes_after)
    before.terms["mine"](said(["p"] * 3, ["a", "nan", "b"]))
    before.terms["mine"](said(["p"], ["fail"]))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    after.terms["mine"](said(["p"], ["a"]))
    (note,) = notes_after
    assert note.startswith("reward mine: 2 of 5 responses unscored, 1 of them NaN (20% of all), 1 calls failed, first:")
    assert "service down" in note


@pytest.mark.parametrize(
    ("body", "parameters", "contains", "lacks"),
    [
        (
            "[len(c[0]['text']) for c in completions]",
            "",
            ("TypeError", "are text here, not lists of messages"),
            "add",
        ),
        ("{}['late']", "", ("KeyError",), "messages"),
        ("trainer_state.global_step", "trainer_state=None, ", ("AttributeError",), "messages"),
        ("0", "completion_ids, ", ("takes 'completion_ids'", "TRL's trainer passes it"), "add the"),
    ],
)
def test_a_function_of_trl_is_told_what_it_gets(here, body, parameters, contains, lacks):
    problem = trial(here, f"    return {body}", f"completions, {parameters}**kwargs")
    assert all(words in problem for words in contains) and lacks not in problem


def test_a_function_of_one_text_is_refused(here):
    assert "mine.py:mine takes (response); write it as a function of two lists" in trial(here, "    pass", "response")
