"""Real preference data and Hugging Face checkpoints from a folder go through the same pipeline."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from support import gpt2_tokenizer, llama_tokenizer, prompt_text, save_tiny, toy_rows

FILE = "hh_rlhf_harmless_test.jsonl.gz"
DATA = Path(os.environ.get("RLHF_LAB_DATA", Path(__file__).parents[3] / "shared" / "data"))
SIZES = ("algorithm.max_length=96", "algorithm.epochs=1", "algorithm.batch_size=16")


def overrides(data: Path, model: Path) -> list[str]:
    stages = {"sft": SIZES, "reward_model": SIZES, "dpo": (*SIZES, "evaluation.prompts=3", "evaluation.pairs=4")}
    return [
        "data=hh_rlhf",
        f"data.path={data}",
        "model=hf",
        f"model.path={model}",
        "rollout.max_prompt_tokens=48",
        "rollout.max_new_tokens=12",
        "evaluation.prompts=3",
        "evaluation.samples_per_prompt=2",
        "evaluation.pairs=4",
        "algorithm.max_length=96",
        "algorithm.batch_size=8",
        "algorithm.prompts_per_round=8",
        "algorithm.samples_per_prompt=2",
        "algorithm.rounds=1",
        "runtime.threads=1",
        *(f"stages.{name}.{setting}" for name, settings in stages.items() for setting in settings),
    ]


def texts(rows: list[dict]) -> list[str]:
    return [row["chosen"] for row in rows]


def self_made(path: Path) -> list[dict]:
    """48 rows in hh-rlhf's form, two of them unusable for a counted reason."""
    rows = [
        {"chosen": f"{prompt_text(q)} {c}", "rejected": f"{prompt_text(q)} {r}"} for q, c, r in toy_rows(46, seed=4)
    ]
    rows.append({"chosen": rows[0]["chosen"], "rejected": rows[1]["rejected"]})  # two histories
    rows.append({"chosen": rows[2]["chosen"], "rejected": rows[2]["chosen"]})  # identical
    with gzip.open(path, "wt") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


def test_llama_style_checkpoint_on_a_self_made_file(fresh):
    data = fresh.folder / "mine.jsonl.gz"
    rows = self_made(data)
    model = save_tiny("llama", llama_tokenizer(texts(rows)), fresh.folder / "checkpoint")
    out = fresh.run("+recipe=dpo_iterative", *overrides(data, model))
    result = fresh.result(out, "dpo_iterative")
    assert [policy["name"] for policy in result["policies"]] == ["SFT", "one-pass DPO", "iteration 1"]
    assert "gold" not in result["policies"][0]["metrics"]  # nobody knows the truth here
    manifest = json.loads((fresh.stage(out, "sft") / "manifest.json").read_text())
    report = manifest["data"]["report"]["all"]
    assert report["rows"] == 48
    assert sum(report["dropped"].values()) == 2
    assert report["kept"] == 46
    saved = json.loads((fresh.stage(out, "dpo_iterative") / "model" / "config.json").read_text())
    assert saved["model_type"] == "llama"


def test_gpt2_style_checkpoint_on_hh_rlhf(fresh):
    data = DATA / FILE
    if not data.exists():
        pytest.skip(f"{FILE} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    with gzip.open(data, "rt") as handle:
        rows = [json.loads(next(handle)) for _ in range(200)]
    model = save_tiny("gpt2", gpt2_tokenizer(texts(rows), 1000), fresh.folder / "checkpoint")
    out = fresh.run("+recipe=dpo_iterative", *overrides(data, model), "data.max_pairs=48")
    result = fresh.result(out, "dpo_iterative")
    assert result["status"] == "completed"
    report = json.loads((fresh.stage(out, "sft") / "manifest.json").read_text())["data"]["report"]
    for split in ("train", "test"):
        assert report[split]["rows"] == report[split]["kept"] + sum(report[split]["dropped"].values())
        assert report[split]["kept"] == 48
    audit = fresh.run("audit", "data=hh_rlhf", f"data.path={data}")
    assert "44.2" in audit
    assert "2312" in audit.replace(",", "")
