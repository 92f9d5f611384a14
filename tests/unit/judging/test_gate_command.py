"""The command of eval_suite that the gate and its page name for a policy of one's own is accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from page_commands import ROOT
from support import llama_tokenizer, planned, save_tiny

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.gates.gate import judge
from rlhf_lab.stages import preflight


def command_of(text: str) -> list[str]:
    """Overrides of the one command of eval_suite with a policy that a text shows."""
    (shown,) = re.findall(r"python -m rlhf_lab \+recipe=eval_suite (needs\.policy=[^`\n]+)", text)
    return shlex.split(shown)


def test_the_command_that_the_gate_prints_is_accepted(tmp_path):
    """A run that trained a policy and was not asked the suite."""
    suite, only = str(tmp_path / "suite.yaml"), str(tmp_path / "runs" / "dpo")
    Path(suite).write_text("suite: mine\nmetrics:\n  golden/facts: {min: 0.2}\n")
    model = save_tiny("llama", llama_tokenizer(["a few words"]), Path(only) / "model")
    (Path(only) / "manifest.json").write_text(json.dumps({"recipe": "dpo", "needs": {}}))
    result = {"status": "completed", "policies": [{"name": "dpo", "metrics": {"gold": 1.0}}], "metrics": {}}
    (Path(only) / "result.json").write_text(json.dumps(result))
    with pytest.raises(DataError) as caught:
        judge(suite, only)
    overrides = command_of(str(caught.value))
    assert overrides == [f"needs.policy={model}", f"stages.safety_eval.needs.dpo={model}"]
    page = (ROOT / "docs/gates.md").read_text(encoding="utf-8")
    assert [word.replace("POLICY", str(model)) for word in command_of(page)] == overrides
    stage = planned("eval_suite", *overrides, f"outputs={tmp_path}")
    preflight.check([*stage.upstream(), stage])
    # the safety evaluation, whose numbers the gate reads too, is of the same model
    assert stage.needs["policy"].model == stage.needs["safety"].needs["dpo"].model == str(model)
    # the directory of the run itself stands for its model; without a manifest it is no run, and is refused
    of_run = planned("eval_suite", f"needs.policy={only}", f"outputs={tmp_path}")
    assert of_run.needs["policy"].model == str(model)
    (Path(only) / "manifest.json").unlink()
    of_directory = planned("eval_suite", f"needs.policy={only}", f"outputs={tmp_path}")
    with pytest.raises(ConfigError, match=rf"did you mean {re.escape(str(model))}\?"):
        preflight.check([of_directory])
