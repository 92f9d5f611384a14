"""Messages of a wrong command: every problem, in a second, with exit status 2, before torch is imported."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import command_inside

from rlhf_lab.cli.table import COMMANDS, description_of, needs_words
from rlhf_lab.config import command_line, compose, inventory, job_configs
from rlhf_lab.config.overrides import forced, literal
from rlhf_lab.core.errors import ConfigError

RECIPES = [name for name in inventory.recipes() if not name.startswith("study/")]
Refused = Callable[..., list[str]]


FORKS = """
import json, os, sys
from rlhf_lab import main
from rlhf_lab.config import compose
compose.register_store()
for line in sys.stdin:
    directory, printed, arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(directory)
        sys.argv = ["rlhf_lab", *arguments]
        for stream, path in zip((1, 2), printed):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
        try:
            main.main()
        finally:
            print("TORCH" if "torch" in sys.modules else "LIGHT", file=sys.stderr)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Run each command in a fork: a new process that has imported the command line and read conf/."""


@pytest.fixture(scope="module")
def forks() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        yield server
        server.stdin.close()


@pytest.fixture
def refused(forks: subprocess.Popen[str], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    """The problems of a command that must be refused before anything heavy happens."""

    def run(*arguments: str) -> list[str]:
        printed = [tmp_path_factory.mktemp("printed") / name for name in ("out", "err")]
        forks.stdin.write(json.dumps([str(tmp_path), list(map(str, printed)), arguments]) + "\n")
        forks.stdin.flush()
        status = int(forks.stdout.readline())
        out, err = (path.read_text() for path in printed)
        assert "Traceback" not in err, err
        problems = problems_of(out)
        assert (status, err) == (2, "LIGHT\n"), problems
        assert not list(tmp_path.glob("outputs/**/result.json"))
        return problems

    return run


def problems_of(out: str) -> list[str]:
    problems = [" ".join(item.split()) for item in out.split("  • ")[1:]]
    assert not problems or f"{len(problems)} problem" in out
    return problems


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["+recipie=x"], ["recipie is not a setting; did you mean recipe?"]),
        (["+recipe=dpo", "algorithm=DPO"], ["algorithm=DPO does not exist; did you mean dpo?"]),
        (["+recipe=dpo", "beta=0.1"], ["beta is not a setting; did you mean algorithm.beta?"]),
        (["threads=2"], ["threads is not a setting; did you mean runtime.threads?"]),
        (
            ["+recipe=dpo_iterative", "algorithm.betta=1"],
            ["algorithm.betta is not a setting of what was chosen; did you mean beta?"],
        ),
        (["+recipe=dpo_iterative", "algorithm=dpoo"], ["algorithm=dpoo does not exist; did you mean dpo?"]),
        (
            ["+recipe=dpo", "model=models/mine", "data=owner/name"],
            [
                "model=models/mine does not exist; a directory or hub id is written model=hf model.path=models/mine",
                "data=owner/name does not exist; a file or hub id is written data=KIND data.path=owner/name, where "
                "KIND is pairs, sft, prompts, unpaired or verifiable",
            ],
        ),
        (
            ["+recipe=dpo", "needs.policy=nonsense"],
            [
                f"needs.policy=nonsense is neither a recipe ({', '.join(RECIPES)}), a directory, nor a hub id "
                "(owner/name); run a recipe of your own first, and name the directory of its run"
            ],
        ),
        (
            ["+recipe=study/buffers", "study.baseline=currant"],
            ["study.baseline=currant is not one of ['current', 'rolling', 'full']"],
        ),
        (
            ["algorithm.staleness=1"],
            [
                "algorithm.staleness is not a setting of what was chosen; staleness is a setting of another algorithm "
                "(grpo, ppo)"
            ],
        ),
        (["report", "a", "b"], ["report needs one directory: python -m rlhf_lab report outputs/studies/NAME"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0][:20] else None,
)
def test_a_wrong_command(refused, arguments, expected):
    assert refused(*arguments) == expected


def test_a_recipe_with_two_mistakes(refused, tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "x.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /algorithm: dpo\n"
        "needs: {policy: sft}\n"
        "algorithm: {bteta: 0.1, lr: fast}\n"
    )
    problems = refused("--config-dir", str(tmp_path), "+recipe=x")
    assert sorted(problems) == [
        "algorithm.bteta is not a setting; did you mean beta?",
        "algorithm.lr=fast is text, expected a number",
    ]


@pytest.mark.slow
def test_every_job_of_a_sweep_is_checked_before_the_first_runs(refused):
    problems = refused("+recipe=dpo_iterative", "algorithm.buffer=current,rollin", "algorithm.window=2,0")
    assert len(problems) == 2
    assert problems[0].startswith("algorithm.window=0 must be at least 1")
    assert problems[1] == "algorithm.buffer=rollin is not one of current, rolling, full; did you mean rolling?"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_sub_command_that_needs_words_prints_its_usage_and_is_wrong_input(name, tmp_path, monkeypatch):
    """The same for all: usage and status 2; those that do something by themselves run."""
    ran = []
    monkeypatch.setitem(COMMANDS, name, functools.wraps(COMMANDS[name])(lambda words: ran.append(list(words))))
    status, out = command_inside(tmp_path, name)
    optional = {"ablations", "attack", "dashboard", "demo", "sandbox", "parler", "vllm"}
    optional |= {"doctor", "explain", "transfer"}
    assert needs_words(name) == (name not in optional)
    if needs_words(name):
        assert status == 2 and out.startswith(description_of(name).splitlines()[0][:40]) and not ran
    else:
        assert status == 0 and ran == [[]]


def data_problem(cwd: Path, kind: str, path: Path | str, *more: str) -> str:
    status, out = command_inside(cwd, "+recipe=sft", f"data={kind}", f"data.path={path}", *more)
    problems = problems_of(out)
    assert status == 2
    assert len(problems) == 1, problems
    return problems[0]


def test_a_wrong_column_names_the_columns_and_the_fix(tmp_path):
    path = tmp_path / "wrong.jsonl"
    path.write_text(json.dumps({"prompt": "a", "preferred": "b", "rejected": "c"}) + "\n")
    line = data_problem(tmp_path, "pairs", path)
    for part in ("wrong.jsonl", "row 1", "'chosen'", "preferred", "data.chosen="):
        assert part in line, line


QUICK = """# @package _global_
defaults:
  - /recipe/dpo
study:
  question: Which β?
  sweep:
    algorithm.beta: [0.1, 0.2, 0.4]
    reward.terms.bt: [{weight: 1.0}, {weight: 0.5}]
    seed: [0, 1, 2]
  compare: algorithm.beta
  baseline: 0.1
  metrics: [gold]
  predicts:
    - {metric: gold, level: 0.2, direction: higher}
    - {metric: gold, level: 0.4, direction: higher}
  quick:
    data: mini_hh_small
    algorithm.beta: [0.1, 0.2]
    algorithm.epochs: 0.5
    stages.sft.algorithm.epochs: 0.25
    seed: [0, 1]
"""


def test_the_quick_size_of_a_study_is_a_set_of_overrides(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "mine.yaml").write_text(QUICK)
    full = command_line.check_command(["+recipe=mine"], str(tmp_path))
    quick = command_line.check_command(["+recipe=mine", "study.size=quick", "algorithm.epochs=2"], str(tmp_path))
    assert (len(full.jobs), len(quick.jobs)) == (18, 8)
    assert {job["seed"] for job in quick.jobs} == {0, 1}
    assert [claim.level for claim in quick.study.predicts] == [0.2] and len(full.study.predicts) == 2
    small = command_line.check_command(["+recipe=dpo", "data=mini_hh_small"]).configs[0]
    assert all(c.data == small.data.of_run(c.seed) != full.configs[0].data for c in quick.configs if c.seed == 0)
    assert [c.data.seed for c in quick.configs] == [c.seed for c in quick.configs]  # a seed has data of its own
    assert {c.algorithm.epochs for c in quick.configs} == {2.0}  # named on the command line
    assert {c.stages["sft"]["algorithm"]["epochs"] for c in quick.configs} == {0.25}
    assert {c.reward.terms["bt"].weight for c in full.configs} == {1.0, 0.5}  # a mapping as a level
    assert not full.configs[0].stages and full.study.size == "full" and quick.study.size == "quick"


ARMS = """# @package _global_
defaults:
  - /recipe/dpo
study:
  question: Which arm?
  arms:
    plain: {}
    strict: {algorithm.beta: 0.7, stages.sft.algorithm.epochs: 3.0}
  sweep:
    study.arm: [plain, strict]
    seed: [0, 1]
  compare: study.arm
  baseline: plain
  metrics: [gold]
"""


def recipe_with(tmp_path, text):
    (tmp_path / "recipe").mkdir(exist_ok=True)
    (tmp_path / "recipe" / "mine.yaml").write_text(text)
    return str(tmp_path)


def test_an_arm_has_several_settings(tmp_path):
    directory = recipe_with(tmp_path, ARMS)
    command = command_line.check_command(["+recipe=mine"], directory)
    found = [
        (job["study.arm"], job["seed"], config.algorithm.beta, config.stages.get("sft"))
        for job, config in zip(command.jobs, command.configs, strict=True)
    ]
    beta = command_line.check_command(["+recipe=dpo"]).configs[0].algorithm.beta
    longer = {"algorithm": {"epochs": 3.0}}
    assert found[:2] == [("plain", 0, beta, None), ("plain", 1, beta, None)]
    assert found[2:] == [("strict", 0, 0.7, longer), ("strict", 1, 0.7, longer)]
    # The smoke size keeps what an arm sets and reduces the rest.
    full, small = command.configs[-1], command_line.check_command(["+recipe=mine", "size=smoke"], directory).configs[-1]
    assert small.stages["sft"]["algorithm"]["epochs"] == 3 and small.evaluation.prompts < full.evaluation.prompts
    single = command_line.check_command(["+recipe=mine", "study.arm=strict", "seed=0"], directory).configs
    assert [config.algorithm.beta for config in single] == [0.7]
    written = compose.compose(["+recipe=mine", "++study.arm=strict", "algorithm.lr=1e-4"], directory)
    values = job_configs.job_values(written, {"algorithm.lr"})
    assert (values["algorithm"]["beta"], values["study"], written["study"]["arm"]) == (0.7, None, "strict")
    with pytest.raises(ConfigError, match=r"study\.arm=lax is not one of study\.arms: plain, strict"):
        command_line.check_command(["+recipe=mine", "study.arm=lax", "seed=0"], directory)
    with pytest.raises(ConfigError, match=r"study\.arm=strict is not one of study\.arms: none"):
        command_line.check_command(["+recipe=mine", "study=null", "++study.arm=strict", "seed=0"], directory)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[plain, strict]", "[plain, lax]", "sweep.study.arm: lax is not one of arms: plain, strict"),
        ("algorithm.beta: 0.7", "data: reviews", "arms.strict: data chooses an option"),
        ("algorithm.beta: 0.7", "seed: 3", "arms.strict: seed chooses an option, is swept"),
        ("algorithm.beta: 0.7", "algorithm.bta: 0.7", "algorithm.bta is not a setting of what was chosen"),
        ("study.arm: [plain, strict]", "algorithm.beta: [0.1, 0.2]", "arms: plain, strict are not run"),
    ],
)
def test_wrong_arms_are_refused(tmp_path, old, new, message):
    directory = recipe_with(tmp_path, ARMS.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(message)):
        command_line.check_command(["+recipe=mine"], directory)


def test_jobs_that_differ_in_values_are_what_hydra_composes(tmp_path):
    """Values of a sweep are put into one composition; each job has to be what composing it alone gives."""
    sweep = ["+recipe=ppo", "algorithm.beta=0.1,0.2", "stages.sft.algorithm.epochs=1,2", "reward=bt,length", "seed=0,1"]
    command = command_line.check_command(sweep)
    assert len(command.jobs) == 16
    for job, found in zip(command.jobs[::5], command.configs[::5], strict=True):
        own = [f"{forced(key)}={literal(value)}" for key, value in job.items()]
        assert found == command_line.check_command([*command.overrides, *own]).configs[0]
    with pytest.raises(ConfigError, match=r"algorithm\.bta is not a setting of what was chosen; did you mean beta"):
        command_line.check_command(["+recipe=ppo", "algorithm.bta=0.1,0.2"])


def test_problems_of_every_kind_come_in_one_message(refused):
    problems = refused(
        *("+recipe=dpo", "algorithm.bta=1", "algorithm.lr=abc", "algorithm.epochs=-1", "needs.policy=nosuch"),
        *("data=hh_rlhf", "data.path=nosuch.jsonl", "rollout.temprature=1"),
    )
    starts = [
        *("algorithm.bta is not", "rollout.temprature is not", "algorithm.lr=abc is text", "algorithm.epochs=-1"),
        *("needs.policy=nosuch is neither", "nosuch.jsonl: there is no such file"),
    ]
    for start in starts:
        assert sum(line.startswith(start) for line in problems) == 1, (start, problems)
    assert len(problems) == len(starts)


@pytest.mark.slow
def test_what_follows_from_a_wrong_setting_is_no_problem_of_its_own(refused):
    problems = refused(
        "+recipe=dpo", "data=nosuch", "data.path=x", "model.max_positions=many", "algorithm.max_length=300"
    )
    assert [problem.partition(" ")[0] for problem in problems] == ["data=nosuch", "model.max_positions=many"]


BETAS = ["+recipe=dpo", "algorithm.beta=1,2", "seed=0,1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=study/dpo_rounds", "seed=a,b"], "seed=a is text, expected a whole number"),
        (["+recipe=study/dpo_rounds", "seed=[0,1]"], "seed=[0, 1] is a list"),
        (["+recipe=study/dpo_rounds", "study.sweep.seed=[]"], "study.sweep.seed has no values"),
        (["+recipe=study/mitigations", "study.arms=3"], "study.arms=3 is a whole number"),
        ([*BETAS, "study.predicts=[{metric: gold, level: 1, direction: same, margin: 1}]"], "is compared with itself"),
        ([*BETAS, "study.predicts=[{metric: gold, level: 2, direction: higher, versus: 3}]"], "3 is not a level of"),
        ([*BETAS, "study.processes=0"], "study.processes=0 must be at least 1"),
        (["+recipe=dpo", "needs.policy.x=1,2"], "needs.policy.x is not a setting of what was chosen"),
        (["+recipe=dpo", "stages.sft.algorithm=3", "stages.sft.algorithm.lr=1,2"], "stages.sft.algorithm.lr is not a"),
        (["+recipe=dpo", "stages.sft=3"], "stages.sft=3 is a whole number"),
        (["+recipe=dpo", "size=smoke", "stages.sft=3"], "stages.sft=3 is a whole number"),
        (["+recipe=[dpo,grpo]"], "+recipe=[dpo,grpo] is a list; write +recipe=dpo,grpo"),
        (["+recipe=grpo", "reward='bt,length'"], "reward=bt,length does not exist"),
    ],
)
def test_a_value_of_the_wrong_form_is_explained(words, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        command_line.check_command(words)


@pytest.mark.parametrize(("words", "seeds"), [(["0,1", "2"], [2]), (["2", "0,1"], [0, 1]), (["0,1", "2,3"], [2, 3])])
def test_the_last_of_several_values_of_a_key_counts(words, seeds) -> None:
    command = command_line.check_command(["+recipe=dpo", *(f"seed={word}" for word in words)])
    assert [config.seed for config in command.configs] == seeds


@pytest.mark.parametrize("file", ["recipe/sft.yaml", "model/tiny.yaml"])
def test_a_users_file_with_the_name_of_a_built_in_one_is_refused(tmp_path, file) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text("# @package _global_\nseed: 7\n")
    with pytest.raises(ConfigError, match="has the name of a built-in file; rename it"):
        command_line.check_command(["+recipe=dpo"], str(tmp_path))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("mine.yml", "# @package _global_\nseed: 7\n", "recipe/mine.yml is not read; rename it to mine.yaml"),
        ("mine.yaml", "seed: 7\n", "begins with the line `# @package _global_`"),
        ("mine.yaml", "# @package _global_\nrecipe: dpo\n", "a recipe that builds on another one has defaults: [dpo]"),
    ],
)
def test_a_users_recipe_that_is_written_in_another_form_is_explained(tmp_path, file, text, message) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / file).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        command_line.check_command(["+recipe=mine"], str(tmp_path))
