"""Recipes on a simulated GPU: no tensor is left on the host, and passes do not wait (`rlhf_lab/core/transfer.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sizes import overrides

from rlhf_lab.config import inventory

pytestmark = pytest.mark.slow

SIMULATED = Path(__file__).parents[1] / "simulated_gpu.py"
ADAPTERS = ("runtime.dtype=bfloat16", "model.lora.rank=4", "model.weights=bfloat16", "stages.sft.model.lora.rank=0")
RECIPES = {
    "sft": ("model=tiny_gpt2", "sharding.checkpointing=true"),
    "dpo": ADAPTERS,
    "dpo_iterative": ("rollout.dtype=bfloat16",),
    "ppo": ADAPTERS,
    "ppo_ensemble": ("runtime.dtype=bfloat16",),
    "prm": (),
    "best_of_n": ("rollout.top_p=0.9", "rollout.batch_rows=3"),
    "grpo_agent": (),
    "tts_grpo": (),
    "tts_dpo": ("runtime.dtype=bfloat16",),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    """One folder, so that stages are built once."""
    return tmp_path_factory.mktemp("simulated")


def run(outputs: Path, recipe: str, *changed: str) -> str:
    """Return the output of the recipe, with the waits for the device at its end."""
    words = [f"+recipe={recipe}", *overrides(recipe), *changed, f"outputs={outputs}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SIMULATED), *words], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_grpo_and_the_stages_before_it(outputs):
    out = run(outputs, "grpo")
    assert "proxy" in out
    assert "waits for the device" in out and "sampling/turns.py" in out, "nothing ran on the device"


@pytest.mark.long
@pytest.mark.parametrize("recipe", [name for name in RECIPES if name in inventory.recipes()])
def test_a_recipe(outputs, recipe):
    run(outputs, recipe, *RECIPES[recipe])


def printed_on_the_device(script: str) -> str:
    """Return the output of a script in its own process, which has the device."""
    install = "import sys; sys.path.insert(0, sys.argv[1])\nimport simulated_gpu\nkept = simulated_gpu.install()\n"
    command = [sys.executable, "-c", install + script, str(SIMULATED.parent)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_passes_never_wait_for_the_device():
    """Full rows wait once: transformers checks if positions are those of packed rows."""
    script = (
        "from families import random_model\n"
        "from rlhf_lab.models.encoding import TokenBatch\n"
        "from rlhf_lab.models.logprobs import token_logps\n"
        "from rlhf_lab.models.shared_prompt import computed_as\n"
        "model = random_model('qwen3').to('cudasim')\n"
        "rows = [([3, 4, 5], [6, 7]), ([3, 4, 5], [8]), ([9], [1, 2, 3, 4])]\n"
        "token_logps(model, TokenBatch.from_rows(rows, 'cudasim'))  # tries what the model can take\n"
        "for way in ('full rows', 'two passes', 'packed rows'):\n"
        "    simulated_gpu.waits.clear()\n"
        "    with computed_as(way):\n"
        "        token_logps(model, TokenBatch.from_rows(rows, 'cudasim')).logps_N.sum().backward()\n"
        "    print(way, simulated_gpu.waits.total())\n"
    )
    assert printed_on_the_device(script).splitlines() == ["full rows 1", "two passes 0", "packed rows 0"]
