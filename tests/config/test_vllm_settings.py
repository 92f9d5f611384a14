"""rollout=vllm with engine=native, before anything is built: what is refused, what is keyed, what is missing."""

from __future__ import annotations

import pytest
from support import checked, planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.pinned_packages import MARKER
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.vllm import environment
from rlhf_lab.stages import preflight

SERVER = ("rollout=vllm", "rollout.mode=server", "rollout.urls=[http://127.0.0.1:8000]")
SPAWN = ("rollout=vllm", "rollout.mode=spawn")


@pytest.mark.parametrize(
    ("recipe", "overrides", "says"),
    [
        ("grpo", ("rollout=vllm", "algorithm.staleness=1"), "set rollout.mode=spawn or rollout.mode=server"),
        ("ppo", SERVER[:2], r"needs the address of a server; set rollout.urls=\[http://127.0.0.1:8000\]"),
        ("ppo", (*SPAWN, SERVER[2]), "is used only with rollout.mode=server"),
        ("grpo", (*SERVER[:2], "rollout.urls=[127.0.0.1:8000]"), "is not a server address; write one such as"),
        ("grpo", (*SERVER[:2], "rollout.urls=[http://a:1,http://a:1]"), "names the same server twice"),
        ("grpo", (*SERVER[:2], "rollout.urls=[http://LocalHost:08001,http://127.0.0.1:8001/]"), "same server twice"),
    ],
)
def test_what_is_refused(recipe, overrides, says):
    with pytest.raises(ConfigError, match=says):
        checked(recipe, *overrides)


@pytest.mark.parametrize("recipe", ["grpo", "dpo_iterative", "sft"])
def test_what_samples_takes_servers(recipe):
    assert checked(recipe, *SERVER).rollout.urls == ("http://127.0.0.1:8000",)
    assert checked(recipe, *SPAWN).rollout.mode == "spawn"


def test_servers_are_in_no_key_and_serve_one_stage():
    one = planned("grpo", *SERVER)
    other = planned("grpo", *SERVER[:2], "rollout.urls=[http://a:1,http://b:2]", "rollout.weights_folder=shared")
    assert one.key == other.key
    assert one.key not in (planned("grpo").key, planned("grpo", *SERVER, "rollout.top_k=5").key)
    local, vllm = planned("grpo"), planned("grpo", *SPAWN)
    assert vllm.needs["reward"].key == local.needs["reward"].key
    assert type(vllm.needs["reward"].config.rollout) is Local


def test_an_environment_that_is_not_there_is_named_before_anything_is_built(monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_LAB_VLLM", str(tmp_path))
    stage = planned("grpo", *SPAWN, "runtime.device=cpu", f"outputs={tmp_path / 'out'}")
    (problem,) = preflight.problems(stage)
    assert problem.startswith("rollout.mode=spawn: there is no environment of vLLM in")
    assert problem.endswith("run: python -m rlhf_lab vllm setup")
    (tmp_path / MARKER).write_text(environment.ENVIRONMENTS["cpu"].pins(), encoding="ascii")
    assert not preflight.problems(stage)
    assert not preflight.problems(planned("grpo", *SERVER, f"outputs={tmp_path / 'out'}"))
