"""`explain` and shell completion: every setting has a meaning, and is shown with the value that it would take."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import check_each, checked, command_inside

from rlhf_lab.cli import explain
from rlhf_lab.cli.completion import candidates
from rlhf_lab.cli.table import COMMANDS
from rlhf_lab.config import docstrings, inventory, registry, root
from rlhf_lab.config.overrides import value_at

OPTIONS = [f"{group}={option}" for group in registry.groups() for option in inventory.options(group)]


def test_what_is_known_of_a_setting() -> None:
    settings = explain.catalogue(["+recipe=ppo", "model=micro"])
    beta = settings["algorithm.beta"]
    assert (beta.default, beta.now, beta.tuned) == (0.2, checked("ppo", "model=micro").algorithm.beta, True)
    assert (beta.type, beta.range) == ("number", "at least 0")
    assert {"algorithm=ppo", "algorithm=grpo", "algorithm=dpo"} <= {*beta.readers}
    assert "algorithm=sft" not in beta.readers
    assert beta.origin.endswith("policy_gradient.settings.OnPolicySettings")
    assert settings["algorithm.warmup_fraction"].range == "at least 0 and below 1"
    assert settings["evaluation.prompts"].range == "at least 2"
    assert settings["runtime.memory_gib"].unit == "GiB"
    assert settings["algorithm.optimizer"].type == "adamw | muon | adamw_8bit"
    assert "arXiv:2502.16982" in docstrings.sources(settings["algorithm.optimizer"].meaning)


def test_the_values_are_those_of_the_run() -> None:
    overrides = ("reward=[bt,programmatic]", "algorithm.beta=0.7", "seed=4")
    values = root.to_values(checked("ppo", *overrides))
    for key, setting in explain.catalogue(["+recipe=ppo", *overrides]).items():
        if not key.startswith("study."):
            assert setting.now == value_at(values, key), key


@pytest.mark.slow
def test_every_option_of_every_group_is_explained() -> None:
    def check(option: str) -> None:
        group, _, name = option.partition("=")
        parts = registry.parts_of(group)
        prefix = f"{group}.{parts}.{name}." if parts else f"{group}."
        kind = inventory.read_yaml(inventory.option_files(group)[name])["kind"]
        fields = {key for key, _, _ in explain._fields(registry.settings_class(group, kind), prefix[:-1])}
        shown = explain.catalogue([option])
        assert fields <= {*shown}
        assert all(setting.meaning and setting.readers for key, setting in shown.items() if key in fields)

    check_each(OPTIONS, check)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["evaluation", "sharding", "seed"]),
        (["algorithm=ppo"], ["algorithm.critic_warmup", "0.4 (model.tuned)", "arXiv:1909.08593"]),
        (["algorithm.beta"], ["per nat", "1/nats", "dpo_iterative"]),
        (["evaluation"], ["evaluation.samples_per_prompt", "at least 1"]),
        (["study", "+recipe=study/buffers"], ["algorithm.buffer"]),
    ],
)
def test_what_explain_prints(arguments: list[str], expected: list[str], tmp_path: Path) -> None:
    status, printed = command_inside(tmp_path, "explain", *arguments)
    assert status == 0, printed
    flat = " ".join(printed.split())
    assert [text for text in expected if text not in flat] == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["algorithm.betta"], "algorithm.betta is not a setting; did you mean algorithm.beta?"),
        (["beta"], "beta is not a setting; did you mean algorithm.beta?"),
        (["ppo"], "ppo is a recipe; write explain +recipe=ppo"),
        (["mini_hh"], "mini_hh is an option of data; write explain data=mini_hh"),
        (["algorithm=sft", "algorithm.beta"], "it belongs to algorithm=canon, cispo"),
        (["algorithm=ppoo"], "algorithm=ppoo does not exist; did you mean ppo?"),
        (["algorithm=ppo", "algorithm.beta=1,2"], "explain accepts one value"),
    ],
)
def test_what_does_not_exist_is_explained_too(arguments: list[str], expected: str, tmp_path: Path) -> None:
    status, printed = command_inside(tmp_path, "explain", *arguments)
    assert (status, expected in printed) == (2, True), printed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf-lab ", ["+recipe=", "algorithm=", "compare", "explain", "seed="]),
        ("rlhf-lab +rec", ["+recipe="]),
        ("rlhf-lab algorithm=dp", ["algorithm=dpo", "algorithm=dpo_hot", "algorithm=dpo_iterative"]),
        ("rlhf-lab +recipe=ppo algorithm.be", ["algorithm.beta="]),
        ("rlhf-lab +recipe=ppo runtime.device=c", ["runtime.device=cpu", "runtime.device=cuda"]),
        ("rlhf-lab +recipe=ppo stages.sft_l", ["stages.sft_lora."]),
        ("rlhf-lab +recipe=nonsense algorithm.ep", ["algorithm.epochs="]),
        ("rlhf-lab report outp", []),
        ("python -m rlhf_lab data=ul", ["data=ultrafeedback"]),
    ],
)
def test_what_can_follow(line: str, expected: list[str]) -> None:
    found = candidates(line, COMMANDS)
    assert {*expected} <= {*found}
    if not line.endswith(" "):
        assert found == expected


def test_a_shell_completes_the_console_script(tmp_path: Path) -> None:
    """Through the function that `rlhf-lab -sc install=bash` defines, without importing torch."""
    script = tmp_path / "rlhf-lab"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nfrom rlhf_lab.main import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    script.chmod(0o755)
    shell = (
        'eval "$(rlhf-lab -sc install=bash)"; complete -p rlhf-lab; COMP_CWORD=1; COMP_LINE="rlhf-lab +recipe=pp"; '
        'COMP_POINT=${#COMP_LINE}; hydra_bash_completion; echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(Path(explain.__file__).parents[2])
    started = time.monotonic()
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment, timeout=60)
    assert done.stderr == ""
    recipes = sorted(name for name in inventory.recipes() if name.startswith("pp"))
    assert done.stdout.splitlines()[-1] == " ".join(f"+recipe={name}" for name in recipes)
    assert "hydra_bash_completion rlhf-lab" in done.stdout
    assert time.monotonic() - started < 20
