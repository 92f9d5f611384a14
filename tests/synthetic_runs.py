"""Synthetic run and study directories, written as a run writes them, for tests of what reads them."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.statistics.inference import clustered_mean

POLICIES = ("SFT", "one-pass DPO", "iteration 1", "iteration 2", "iteration 3")


@contextmanager
def edited(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of a file, and write it back with the changes."""
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))


def edit(file: Path, **changes: Any) -> dict[str, Any]:
    """Change entries of a JSON object in a file, and return the object."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(content))
    return content


def edit_rows(directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace each row of evaluation.jsonl by the row with changes."""
    file = directory / "evaluation.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row | change(row)) + "\n" for row in rows))


def sample_rows(
    policies: tuple[str, ...], prompts: int, samples: int, seed: int, gold: bool, lift: float
) -> list[dict]:
    """Scored samples in which the proxy keeps rising while gold rises, then falls."""
    rng = np.random.default_rng(seed)
    rows = []
    ease = rng.normal(0, 0.4, prompts)
    for stage, policy in enumerate(policies):
        for prompt in range(prompts):
            for sample in range(samples):
                words = " ".join(["Take", "the", "train", "at", "nine;", "it", "is", "cheap."] * (1 + stage // 2))
                rows.append(
                    {
                        "policy": policy,
                        "prompt_id": prompt,
                        "sample_id": sample,
                        "prompt": f"\n\nHuman: How do I reach town {prompt} by noon?\n\nAssistant:",
                        "response": f"{words} Option {sample}.",
                        "proxy": float(ease[prompt] + 0.8 * stage + rng.normal(0, 0.5)),
                        "gold": float(ease[prompt] + lift + 0.9 * stage - 0.27 * stage**2 + rng.normal(0, 0.5))
                        if gold
                        else None,
                        "kl": float(max(0.0, 2.2 * stage + rng.normal(0, 0.4 * bool(stage)))),
                        "tokens": int(20 + 6 * stage + rng.integers(0, 8)),
                        "verbose": int(rng.random() < 0.05 + 0.1 * stage),
                        "garble": 0 if gold else None,
                        "ended": int(rng.random() < 0.97),
                    }
                )
    return rows


def policy_metrics(rows: list[dict], policy: str) -> dict[str, Any]:
    """The estimates that a run stores for one policy."""
    rows = [row for row in rows if row["policy"] == policy]
    clusters = [row["prompt_id"] for row in rows]
    names = [name for name in ("gold", "proxy", "kl", "tokens", "verbose") if rows[0][name] is not None]
    stored: dict[str, Any] = {name: clustered_mean([row[name] for row in rows], clusters).to_dict() for name in names}
    return {**stored, "ranking_accuracy": 0.71}


def write_run(
    root: Path,
    directory: Path | str = "run",
    *,
    status: str = "completed",
    error: str | None = None,
    gold: bool = True,
    prompts: int = 30,
    samples: int = 2,
    seed: int = 0,
    lift: float = 0.0,
    steps: int = 200,
    policies: tuple[str, ...] = POLICIES,
    truncated: bool = False,
) -> Path:
    """Write a run directory below `root`; every argument changes one thing about it."""
    path = root / directory
    path.mkdir(parents=True)
    report = {"rows": 1000, "kept": 960, "dropped": {"empty reply": 40}, "noted": {"roles do not alternate": 3}}
    manifest = {
        "recipe": "dpo_iterative",
        "key": "3f9ac2d17b60",
        "created": "2030-01-02T03:04:05",
        "git_sha": "0123456789abcdef",
        "versions": {"torch": "2.9.0", "rlhf_lab": "0.1.0"},
        "seed": seed,
        "needs": {"policy": {"recipe": "sft", "key": "aa11bb22cc33", "dir": "outputs/store/sft-aa11"}},
        "data": {"name": "mini_hh", "fingerprint": "feed5eed", "report": {"train": report}},
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "config.yaml").write_text("algorithm:\n  kind: dpo_iterative\n  beta: 0.1\nseed: 0\n")
    rng = np.random.default_rng(seed)
    lines = [
        json.dumps(
            {
                "step": step,
                "time": 0.3 * step,
                "stage": "dpo_iterative",
                "loss": 0.69 * float(np.exp(-step / 120)) + float(rng.normal(0, 0.02)),
                "train/margin": 0.01 * step + float(rng.normal(0, 0.1)),
                "kl": 0.02 * step,
                "lr": 1e-4 * (1 - step / steps),
            }
        )
        for step in range(steps)
    ]
    tail = lines[-1][:25] if truncated else ""
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n" + tail)
    rows = sample_rows(policies, prompts, samples, seed, gold, lift) if policies else []
    # An iterative run evaluates its baseline last; result.json has the order of training.
    evaluated = sorted(rows, key=lambda row: row["policy"] == "one-pass DPO")
    (path / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evaluated))
    result = {
        "status": status,
        "error": error,
        "seconds": 71.5,
        "policies": [{"name": name, "metrics": policy_metrics(rows, name)} for name in policies],
        "metrics": {"gold/best": 0.75, "staleness": 1.5},
    }
    (path / "result.json").write_text(json.dumps(result))
    return path


def write_study(
    root: Path,
    *,
    seeds: int = 4,
    lift: float = 1.2,
    failed: tuple[int, ...] = (),
    missing: tuple[int, ...] = (),
    gold: bool = True,
) -> Path:
    """Write a study of three buffers over seeds: `mixed` lifts gold by `lift`, `stale` does nothing."""
    study = root / "study"
    levels = ("current", "mixed", "stale")
    jobs = [{"algorithm.buffer": level, "seed": seed} for level in levels for seed in range(seeds)]
    study.mkdir(parents=True)
    plan = {
        "recipe": "study/buffers",
        "question": "Does training on old samples hurt iterative DPO?",
        "hypothesis": "On-policy samples are better (an example of a published claim).",
        "compare": "algorithm.buffer",
        "baseline": "current",
        "metrics": ["gold", "proxy", "kl", "staleness"],
        "primary": "gold" if gold else "proxy",
        "replication": {"data": "redrawn", "kept": []},
        "jobs": [
            {"index": index, "overrides": job, "settings": job["algorithm.buffer"]} for index, job in enumerate(jobs)
        ],
    }
    (study / "study.json").write_text(json.dumps(plan))
    for index, overrides in enumerate(jobs):
        if index in missing:
            continue
        directory = study / "jobs" / str(index)
        bad = index in failed
        write_run(
            root,
            directory / "run",
            status="failed" if bad else "completed",
            error="Traceback\nNumericError: the loss is NaN at step 40" if bad else None,
            seed=100 + index,
            lift=lift if overrides["algorithm.buffer"] == "mixed" else 0.02 * (index % 3),
            prompts=24,
            gold=gold,
            steps=20,
        )
        job = {"status": "failed" if bad else "completed", "run": f"jobs/{index}/run", "error": None}
        (directory / "job.json").write_text(json.dumps(job))
    return study


def add_clips(directory: Path, seconds: float = 0.5) -> list[Path]:
    """Give the first sample of each policy to the first two prompts as audio, as an evaluation of speech does."""
    rows = [json.loads(line) for line in (directory / "evaluation.jsonl").read_text().splitlines()]
    (directory / "clips").mkdir()
    written = []
    for row in rows:
        if row["prompt_id"] < 2 and row["sample_id"] == 0:
            row["clip"] = f"clips/{row['policy'].replace(' ', '_').replace('-', '_')}-{row['prompt_id']}.wav"
            tone = 8000 * np.sin(2 * np.pi * 220 * np.arange(int(16_000 * seconds)) / 16_000)
            with wave.open(str(directory / row["clip"]), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16_000)
                file.writeframes(tone.astype("<i2").tobytes())
            written.append(directory / row["clip"])
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return written
