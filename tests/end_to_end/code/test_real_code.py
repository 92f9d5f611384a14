"""Public tasks of code: a policy imitates their solutions."""

from __future__ import annotations

import pytest
from support import gpt2_tokenizer, save_tiny
from test_real_input import DATA, SIZES

pytestmark = pytest.mark.slow


def test_code_is_imitated_and_prompts_are_sampled(fresh):
    """HumanEval's solutions by SFT, and GRPO on XSTest's prompts from the policy that came out."""
    files = {name: DATA / name for name in ("HumanEval.jsonl.gz", "xstest_prompts.csv")}
    if not all(path.exists() for path in files.values()):
        pytest.skip(f"{', '.join(files)} are not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    model = save_tiny("gpt2", gpt2_tokenizer(["def f(x):\n    return x"] * 3, 400), fresh.directory / "checkpoint")
    common = ("model=hf", f"model.path={model}", "data.max_pairs=24", "runtime.threads=1")
    programs = ("data=humaneval", f"data.path={files['HumanEval.jsonl.gz']}", "data.test_fraction=0.1")
    out = fresh.run("+recipe=sft", *programs, *common, *SIZES)
    policy = fresh.stage(out, "sft") / "model"
    sizes = ("algorithm.prompts_per_iteration=4", "algorithm.group_size=2", "algorithm.batch_size=8")
    short = ("algorithm.iterations=2", "algorithm.max_length=96", "evaluation.prompts=4", "rollout.max_new_tokens=8")
    start = (f"needs.policy={policy}", "needs.reward=null", "reward=length", "rollout.max_prompt_tokens=64")
    prompts = ("data=xstest", f"data.path={files['xstest_prompts.csv']}")
    out = fresh.run("+recipe=grpo", *prompts, *common, *start, *sizes, *short)
    assert fresh.result(out, "grpo")["status"] == "completed"
