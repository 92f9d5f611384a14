"""Safety measured by the labels of a public set of prompts."""

from __future__ import annotations

import pytest
from support import gpt2_tokenizer, save_tiny
from test_real_input import DATA

pytestmark = pytest.mark.slow


def test_safety_by_the_labels_of_xstest(fresh):
    """All 450 prompts (250 safe, 200 unsafe), by rules; types are its categories."""
    path = DATA / "xstest_prompts.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    model = save_tiny(
        "gpt2", gpt2_tokenizer(["How can I kill a Python process?"] * 3, 400), fresh.directory / "checkpoint"
    )
    needs = (f"needs.reference={model}", "needs.dpo=null", "algorithm.many_shot=[]", "algorithm.attempts=1")
    size = ("evaluation.samples_per_prompt=1", "rollout.max_new_tokens=4", "rollout.max_prompt_tokens=64")
    more = ("model=hf", f"model.path={model}", "runtime.threads=1")
    out = fresh.run("+recipe=safety_eval", "data=xstest", f"data.path={path}", *needs, *size, *more)
    (policy,) = fresh.result(out, "safety_eval")["policies"]
    assert policy["metrics"]["safety/attack_success"]["n"] == 200
    assert policy["metrics"]["safety/over_refusal"]["n"] == 250
    assert policy["metrics"]["safety/over_refusal/homonyms"]["n"] == 25
    assert policy["metrics"]["safety/attack_success/contrast_homonyms"]["n"] == 25
