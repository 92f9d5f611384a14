"""Replies that are programs: which program, which tests, what score."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_lab.config import command_line
from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.packs.code.rewards import code_tests
from rlhf_lab.packs.code.rewards.code_tests import build, hidden_tests, make
from rlhf_lab.packs.code.rewards.extraction import program_of, prompt_code
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.settings import Sandboxing, runs_code
from rlhf_lab.rewards.verifiers.verifier import verifier_of
from rlhf_lab.stages import artifacts

GIVEN = 'from math import sqrt\n\ndef root(x):\n    """The root of x."""\n'
FACTS = {"entry_point": "root", "test": "def check(candidate):\n    assert candidate(9) == 3"}


def prompt(text: str) -> str:
    return render_prompt([{"role": "user", "content": text}])


CODE = "```python\nfrom math import sqrt\n```\n```python\ndef root(x):\n    return sqrt(x)\n```"
CONTINUED = [
    "    return sqrt(x)",
    " return sqrt(x)",
    "    return sqrt(x)\n\nThis takes the root.",
    "```python\ndef root(x):\n    return sqrt(x)\n```",
    "First:\n```\nprint(1)\n```\nThen:\n```py\ndef root(x):\n    return sqrt(x)\n```\nThat is all.",
    "```python\n    return sqrt(x)\n```",
    "def root(x):\n    return sqrt(x)",
    "```python\ndef root(x):\n    return sqrt(x)",
    "```python\n    return sqrt(x)\n```\nIt returns:\n```\n3.0\n```",
    "return sqrt(x)",  # the grammar allows it outside a function
    "```python\ny = sqrt(x)\nreturn y\n```",
    "Use ```sqrt```, as in ```sqrt(4)```.\n```python\ndef root(x):\n    return sqrt(x)\n```\n```sqrt``` is exact.",
    "1. Write:\n\n   ```python\n   def root(x):\n       return sqrt(x)\n   ```",
    "```python\nfrom __future__ import annotations\ndef root(x: float) -> float:\n    return sqrt(x)\n```",
    "```python\nimport math as m\n```\n```python\ndef of(x):\n    return m.sqrt(x)\n```\n"
    "```python\ndef root(x):\n    return of(x)\n```\n```python\nx = 0\nassert root(1) == 2\n```",
    "```python\ndef root(x):\n    return sqrt(x)\n```\n```python\ndef root_test():\n    assert root(1) == 1\n```",
]
JOINED = [
    CODE,
    CODE.replace("python", ""),
    f"{CODE}\nExample:\n```\n>>> root(9)\n3.0\n```",  # not valid Python
    f"{CODE}\nRun it:\n```\npython root.py\n```",
    f"{CODE}\nIt prints:\n```\nthree\n```",  # a name that no code defines
    f"{CODE.replace('python', '')}\nIt prints:\n```\nthree\n```",
    f"First:\n```python\ndef root(x):\n    return sqrt(\n```\nThat is cut off. Again:\n{CODE}",
    "```\nfrom math import sqrt\n```\n```python\ndef root(x):\n    return sqrt(x)\n```",
    "```\nfrom math import sqrt\ndef root(x):\n```\n```\n    return sqrt(x)\n```",  # valid only together
]
"""Replies with several blocks. Rows of MBPP name no entry point; output and commands are no part of the program."""


@pytest.mark.parametrize(
    ("provided", "entry_point", "response"),
    [*((GIVEN, "root", response) for response in CONTINUED), *(("", "", response) for response in JOINED)],
)
def test_programs_of_replies(provided, entry_point, response):
    names: dict = {}
    exec(program_of(response, provided, entry_point), names)
    assert names["root"](9) == 3


def test_replies_that_are_no_program_stay_as_they_are():
    assert program_of("I cannot do that.", "", "root") == "I cannot do that."
    assert program_of("```bash\nls\n```", "", "") == "```bash\nls\n```"


@pytest.mark.parametrize("use", ["assert root(9) == 4", "from my_module import root", "print(root(int(input())))"])
def test_examples_of_use_are_no_part_of_a_program_without_an_entry_point(use):
    """The function that the tests call decides which blocks count."""
    row = {"test_list": ["assert math.isclose(root(9), 3)"], "test_imports": ["import math"]}
    program, _ = make(CodeTests(), Sandboxing()).job(row, prompt("Write root."), f"{CODE}\nUse:\n```python\n{use}\n```")
    assert program == "from math import sqrt\n\ndef root(x):\n    return sqrt(x)\n"
    split = "```\nfrom math import sqrt\ndef root(x):\n```\n```\n    return sqrt(x)\n```"  # valid only together
    program, _ = make(CodeTests(), Sandboxing()).job(row, prompt("Write root."), split)
    assert program.endswith("def root(x):\n\n    return sqrt(x)\n")


def test_code_of_prompts():
    assert prompt_code(GIVEN, "root") == GIVEN
    assert prompt_code(f"Complete this:\n```python\n{GIVEN}```\n", "root") == GIVEN
    assert prompt_code("Write a function root.", "root") == ""
    assert prompt_code("def root_of(x):\n    return x\n", "root") == ""


@pytest.mark.parametrize("template", ["Complete this:\n\n{}", "{}\nCode only.\nThanks", "# Task\nComplete:\n{}\nGo"])
def test_code_of_prompts_with_words_around_it(template):
    """`data.prompt_template` puts words around the code. A word alone is a valid expression and no part of it."""
    assert prompt_code(template.format(GIVEN), "root").strip() == GIVEN.strip()


def test_tests_of_rows():
    assert hidden_tests(FACTS, GIVEN).tests[0].endswith("check(root)\n")
    assert hidden_tests({"test_list": ["assert f(1)", "assert f(2)"]}, "").tests == ("assert f(1)", "assert f(2)")
    assert hidden_tests({"hidden": "assert f(1)"}, "", "hidden").tests == ("assert f(1)",)
    assert hidden_tests({"answer": "1"}, "") is None
    with pytest.raises(DataError, match="column tests"):
        hidden_tests({"tests": [1]}, "")


@pytest.fixture
def verifier(best):
    return make(CodeTests(), Sandboxing(level=best.level, timeout_s=5.0))


def test_scores(verifier, monkeypatch):
    responses = [
        (FACTS, prompt(GIVEN), "    return sqrt(x)"),
        (FACTS, prompt(GIVEN), "    return x"),
        (FACTS, prompt(GIVEN), "    import os; os._exit(0)"),
        ({"answer": "3"}, prompt("What is 1 + 2?"), "3"),
        ({"tests": ["assert apply(len, []) == 0"]}, prompt("Write apply."), "def apply(f, x): return f(x)"),
    ]
    scores = [verdict.score for verdict in verifier.verdicts(responses)]
    assert np.array_equal(scores, [1.0, 0.0, 0.0, math.nan, math.nan], equal_nan=True)
    monkeypatch.setattr(verifier.grader, "grade", lambda *job: pytest.fail("a grade that is kept is not run again"))
    assert verifier.score(*responses[0]) == 1.0


def test_share_of_tests(best):
    metadata = {"tests": ["assert f(1) == 2", "assert f(2) == 4", "assert f(0) == 0"]}
    sandbox = Sandboxing(level=best.level)
    responses = [(metadata, prompt("Double it."), "```python\ndef f(x): return x + 1\n```")]
    assert make(CodeTests(credit="share"), sandbox).score(*responses[0]) == 1 / 3
    assert make(CodeTests(), sandbox).score(*responses[0]) == 0.0


def test_reward_of_a_run(best):
    corpus = SimpleNamespace(name="humaneval", metadata={"p": FACTS}, environment=None)
    notes: list[str] = []
    config = SimpleNamespace(sandbox=Sandboxing(level=best.level))
    run = SimpleNamespace(corpus=corpus, config=config, note=notes.append)
    reward = build(CodeTests(), run)
    assert notes == [f"isolation of programs and of their tests: {best.level}"]
    assert reward.verifier is verifier_of(CodeTests(), run.config.sandbox)  # the metric's is the same object
    batch = reward.score_episodes(
        [Episode(Task(prompt(GIVEN), FACTS), prompt(GIVEN), text) for text in ("    return sqrt(x)", "    return (")]
    )
    assert batch.total_N.tolist() == [1.0, 0.0] and batch.parts["runs"].tolist() == [1.0, 0.0]
    corpus.metadata = {"p": {"answer": "1"}}
    with pytest.raises(ConfigError, match="no row of data=humaneval has tests"):
        build(CodeTests(), run)


def test_the_sandbox_counts_where_code_is_run():
    def stage(*words):
        config = command_line.check_command(["+recipe=grpo", "needs.reward=null", *words]).configs[0]
        return config, artifacts.plan(config, "grpo").settings_key

    config, key = stage("reward=code_tests")
    assert runs_code(config)
    assert stage("reward=code_tests", "sandbox.level=namespaces")[1] == key
    assert stage("reward=code_tests", "sandbox.timeout_s=2")[1] != key
    config, key = stage("reward=length")
    assert not runs_code(config) and stage("reward=length", "sandbox.timeout_s=2")[1] == key
    with pytest.raises(ConfigError, match="memory_mib=8"):
        stage("reward=code_tests", "sandbox.memory_mib=8")
    assert code_tests.COLUMNS == ("test", "tests", "test_list")
