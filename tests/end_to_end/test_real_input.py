"""Real preference data and Hugging Face checkpoints from a folder go through the same pipeline."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from support import gpt2_tokenizer, llama_tokenizer, prompt_text, save_tiny, toy_rows

from rlhf_lab.config import inventory, registry

pytestmark = pytest.mark.slow
FILE = "hh_rlhf_harmless_test.jsonl.gz"
DATA = Path(os.environ.get("RLHF_LAB_DATA", Path(__file__).parents[3] / "shared" / "data"))
USED = {"policy": "sft", "reward": "reward_model"}
"""Role → the recipe that PPO builds for it."""
SIZES = ("algorithm.max_length=96", "algorithm.epochs=1", "algorithm.batch_size=16")


def every_algorithm(data: Path, model: Path) -> list[str]:
    """`compare_policies` needs all of them: SFT, reward model, DPO, iterative DPO, PPO, GRPO and RLOO."""
    small = ("evaluation.prompts=3", "evaluation.samples_per_prompt=2", "evaluation.pairs=4")
    evaluation = (*small, "algorithm.lr=1e-3")
    policy = (*evaluation, "algorithm.max_length=96", "algorithm.batch_size=8", "algorithm.prompts_per_iteration=4")
    policy = (*policy, "algorithm.group_size=2", "algorithm.iterations=2")
    rounds = ("algorithm.prompts_per_round=8", "algorithm.samples_per_prompt=2", "algorithm.rounds=1")
    stages = {
        "sft": SIZES,
        "reward_model": SIZES,
        "dpo": (*SIZES, *evaluation),
        "dpo_iterative": (*evaluation, "algorithm.max_length=96", "algorithm.batch_size=8", *rounds),
        "ppo": (*policy, "algorithm.critic_warmup=1"),
        "grpo": policy,
        "rloo": policy,
    }
    return [
        "data=hh_rlhf",
        f"data.path={data}",
        "model=hf",
        f"model.path={model}",
        "rollout.max_prompt_tokens=48",
        "rollout.max_new_tokens=12",
        *small,
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


def test_every_algorithm_on_a_llama_style_checkpoint_and_a_self_made_file(fresh):
    data = fresh.directory / "mine.jsonl.gz"
    rows = self_made(data)
    model = save_tiny("llama", llama_tokenizer(texts(rows)), fresh.directory / "checkpoint")
    out = fresh.run("+recipe=compare_policies", *every_algorithm(data, model))
    result = fresh.result(out, "compare_policies")
    assert [p["name"] for p in result["policies"]] == ["sft (reference)", "dpo", "dpo_iterative", "ppo", "grpo", "rloo"]
    assert all(p["metrics"]["kl"]["mean"] > 0 for p in result["policies"][1:])
    assert "gold" not in result["policies"][0]["metrics"]  # nobody knows the truth here
    manifest = json.loads((fresh.stage(out, "sft") / "manifest.json").read_text())
    report = manifest["data"]["report"]["all"]
    assert report["rows"] == 48
    assert sum(report["dropped"].values()) == 2
    assert report["kept"] == 46
    saved = json.loads((fresh.stage(out, "ppo") / "model" / "config.json").read_text())
    assert saved["model_type"] == "llama"


def test_gpt2_style_checkpoint_on_hh_rlhf(fresh):
    data = DATA / FILE
    if not data.exists():
        pytest.skip(f"{FILE} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    with gzip.open(data, "rt") as handle:
        rows = [json.loads(next(handle)) for _ in range(200)]
    model = save_tiny("gpt2", gpt2_tokenizer(texts(rows), 1000), fresh.directory / "checkpoint")
    iterations = ("algorithm.iterations=2", "algorithm.critic_warmup=1")
    sizes = (*iterations, "algorithm.prompts_per_iteration=4", "algorithm.batch_size=4", SIZES[0])
    out = fresh.run("+recipe=ppo", *every_algorithm(data, model), "data.max_pairs=48", *sizes)
    result = fresh.result(out, "ppo")
    assert result["status"] == "completed" and len(result["policies"]) == 2
    report = json.loads((fresh.stage(out, "sft") / "manifest.json").read_text())["data"]["report"]
    for split in ("train", "test"):
        assert report[split]["rows"] == report[split]["kept"] + sum(report[split]["dropped"].values())
        assert report[split]["kept"] == 48
    audit = fresh.run("audit", "data=hh_rlhf", f"data.path={data}")
    assert "44.2" in audit
    assert "2312" in audit.replace(",", "")


@pytest.mark.long
def test_gold_is_a_reward_model_of_other_human_pairs(fresh):
    """SFT, proxy, PPO and best-of-n on some rows of hh-rlhf, measured by a reward model that was trained on others."""
    data = DATA / FILE
    if not data.exists():
        pytest.skip(f"{FILE} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    with gzip.open(data, "rt") as handle:
        lines = [next(handle) for _ in range(200)]
    rows = {"training": lines[:100], "gold": lines[100:]}
    for name, part in rows.items():
        (fresh.directory / f"{name}.jsonl").write_text("".join(part))
    model = save_tiny("gpt2", gpt2_tokenizer(texts(list(map(json.loads, lines))), 1000), fresh.directory / "checkpoint")

    def on(name: str) -> list[str]:
        return every_algorithm(fresh.directory / f"{name}.jsonl", model)

    # 1. the gold, by a command of its own, from its own SFT
    out = fresh.run("+recipe=reward_model", *on("gold"), *SIZES)
    gold = fresh.stage(out, "reward_model") / "model"
    # 2. a policy that follows a proxy of the other rows
    sizes = ("algorithm.prompts_per_iteration=4", "algorithm.batch_size=4", "algorithm.iterations=10")
    out = fresh.run("+recipe=ppo", *on("training"), *sizes, "algorithm.max_length=96", f"needs.gold={gold}")
    result = fresh.result(out, "ppo")
    sft, ppo = (policy["metrics"] for policy in result["policies"])
    assert {"gold", "proxy"} <= sft.keys() and {"gold", "proxy", "win_rate"} <= ppo.keys()
    # gold is known of the held-out prompts and of every iteration's samples
    assert result["metrics"]["gold_fell"] in (0, 1, None) and "gold_peak" in result["metrics"]
    assert "gold is the score of the reward model" in " ".join(out.split())
    assert "gold reward of the samples" in fresh.run("monitor", str(fresh.stage(out, "ppo")))
    page = (fresh.stage(out, "ppo") / "report.html").read_text()
    assert "Gold against proxy" in page and "simulated world" not in page
    # 3. the curve of both over KL, and one run whose gold is built on demand
    needs = [f"needs.{role}={fresh.stage(out, recipe) / 'model'}" for role, recipe in USED.items()]
    study = ("study.sweep.algorithm=[best_of_n]", "study.sweep.seed=[0,1]", "algorithm.samples=16", "study.predicts=[]")
    out = fresh.run("+recipe=study/overoptimization", *on("training"), *study, *needs, f"needs.gold={gold}")
    (directory,) = (fresh.directory / "outputs" / "studies").iterdir()
    assert "KL at peak" in (directory / "table.md").read_text()
    on_demand = ("needs.gold=reward_model", f"stages.gold.data.path={fresh.directory / 'gold.jsonl'}")
    out = fresh.run("+recipe=dpo", *on("training"), *needs, *on_demand, "algorithm.max_length=96")
    assert "gold" in fresh.result(out, "dpo")["policies"][-1]["metrics"]


def gsm8k(path: Path, count: int = 40) -> Path:
    """Questions and worked answers in GSM8K's form."""
    rows = [
        {
            "question": f"Ann has {a} pens and buys {b} more. How many pens has she?",
            "answer": f"She has {a}+{b}=<<{a}+{b}={a + b}>>{a + b} pens.\n#### {a + b}",
        }
        for a, b in ((i % 9 + 1, i % 7 + 2) for i in range(count))
    ]
    for index, row in enumerate(rows):
        row["question"] = f"{index}. {row['question']}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_verifiable_rewards_on_gsm8k(fresh):
    data = gsm8k(fresh.directory / "gsm8k.jsonl")
    texts_of = [json.loads(line)["answer"] for line in data.read_text().splitlines()]
    model = save_tiny("gpt2", gpt2_tokenizer(texts_of, 600), fresh.directory / "checkpoint")
    sizes = ("algorithm.prompts_per_iteration=4", "algorithm.group_size=2", "algorithm.batch_size=8")
    common = ("data=gsm8k", f"data.path={data}", "data.max_pairs=40", "model=hf", f"model.path={model}")
    small = ("algorithm.iterations=2", "algorithm.max_length=96", "evaluation.prompts=4", "runtime.threads=1")
    tokens = ("rollout.max_prompt_tokens=64", "rollout.max_new_tokens=16")
    stages = tuple(f"stages.sft.{setting}" for setting in SIZES)
    out = fresh.run("+recipe=grpo_math", *common, *sizes, *small, *tokens, *stages)
    policies = fresh.result(out, "grpo_math")["policies"]
    assert [policy["name"] for policy in policies] == ["SFT", "GRPO"]
    assert all(policy["metrics"]["correct_greedy"]["n"] == 4 for policy in policies)


@pytest.mark.parametrize(
    ("data", "file", "rows"),
    [
        ("hh_rlhf", FILE, 2303),
        ("gsm8k", "gsm8k_test.jsonl.gz", 1319),
        ("xstest", "xstest_prompts.csv", 450),
        ("mt_bench", "mt_bench_question.jsonl", 80),
    ],
)
def test_public_data_sets_load_from_the_command_line(fresh, data, file, rows):
    path = DATA / file
    if not path.exists():
        pytest.skip(f"{file} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    fresh.inside("audit", f"data={data}", f"data.path={path}")
    kind = inventory.read_yaml(inventory.option_files("data")[data])
    settings = {key: value for key, value in kind.items() if key not in ("kind", "path")}
    corpus = registry.build("data", registry.settings_class("data", kind["kind"])(path=str(path), **settings))
    assert len(corpus.train) + len(corpus.test) == rows
