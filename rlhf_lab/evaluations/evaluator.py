"""Compares policies on the same held-out prompts: true reward, learned reward, KL, length and the rest.

Every number carries its n and an interval clustered by prompt. Rows go to evaluation.jsonl, summaries to
policies.jsonl; a policy whose summary is there is never evaluated twice, so an interrupted comparison goes on where it
stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.files import append_jsonl, file_digest, fingerprint, read_jsonl, read_rows, truncate
from rlhf_lab.core.types import Reward
from rlhf_lab.losses.preference import PairLogps, idealised_ranking
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.logprobs import exact_kl
from rlhf_lab.models.pair_rows import pair_logps, pair_rows
from rlhf_lab.models.passes import over_rows
from rlhf_lab.sampling.local import Samples
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate, ratio_of_means
from rlhf_lab.training.run import Run

REFERENCE_NAME = "SFT"

SAMPLE_KEYS = ("gold", "proxy", "kl", "tokens", "verbose", "garble", "correct", "ended")


class Evaluator:
    """Evaluates policies one by one; the first is the reference the others are compared with.

    Args:
        reference: the frozen policy of KL, drift and win rate.
        beta: of the DPO objective whose optimum `idealised_ranking` describes.
    """

    def __init__(
        self,
        run: Run,
        reference: nn.Module,
        encoder: Encoder,
        reward: Reward | None,
        beta: float | None,
        max_length: int,
    ):
        self.run, self.reference, self.encoder, self.reward, self.beta = run, reference, encoder, reward, beta
        self.settings, self.rollout = run.config.evaluation, run.config.rollout
        self.sampler = registry.build("rollout", self.rollout, encoder)
        self.prompts = run.corpus.prompts("test")[: self.settings.prompts]
        self.prompt_ids = [encoder.prompt(text, self.rollout.max_prompt_tokens) for text in self.prompts]
        pairs = run.corpus.test[: self.settings.pairs]
        self.pairs = [pair_rows(encoder, pair, max_length) for pair in pairs]
        self.pair_prompts = [p.prompt for p in pairs]
        self.p_chosen = [p.meta.get("p_chosen") for p in pairs]
        self._reference_pairs: PairLogps | None = None
        self._rows_path, self._policies_path = run.folder / "evaluation.jsonl", run.folder / "policies.jsonl"
        self.policies = ranks.on_main(self._restore)
        self._reference_rows = self.rows(self.policies[0]["name"]) if self.policies else []

    def _restore(self) -> list[dict[str, Any]]:
        """Policies of an earlier attempt up to the first whose summary or rows are damaged; the files are cut there."""
        policies, ends = read_rows(self._policies_path)
        size = self._policies_path.stat().st_size if self._policies_path.exists() else 0
        begins = [0, *(policy.get("rows_end", 0) for policy in policies)]
        intact = [self._seal(*item) == item[0].get("sha256") for item in zip(policies, begins, strict=False)]
        kept = intact.index(False) if False in intact else len(intact)
        if size > (ends[kept - 1] if kept else 0):
            files = f"{self._policies_path} or evaluation.jsonl"
            self.run.note(f"{files} was cut or damaged after policy {kept}: evaluated again")
        truncate(self._policies_path, ends[kept - 1] if kept else 0)
        truncate(self._rows_path, policies[kept - 1]["rows_end"] if kept else 0)
        return policies[:kept]

    def _seal(self, policy: dict[str, Any], begin: int) -> str:
        """Digest of a policy's summary and of its rows, which begin at a byte of evaluation.jsonl."""
        summary = {key: value for key, value in policy.items() if key != "sha256"}
        end = policy.get("rows_end", 0)
        rows = file_digest(self._rows_path, begin, end) if self._rows_path.exists() else ""
        return fingerprint([summary, rows])

    def find(self, name: str) -> dict[str, Any] | None:
        """The summary of a policy that was evaluated before, in this attempt or an earlier one."""
        return next((policy for policy in self.policies if policy["name"] == name), None)

    def evaluate(self, name: str, model: nn.Module, samples_per_prompt: int | None = None) -> dict[str, Any]:
        """Metrics of one policy by name; appends its rows and its summary unless they are there already.

        Args:
            samples_per_prompt: None takes that of the settings; policies that are compared need the same number.
        """
        done = self.find(name)
        if done:
            return done
        rows = self.sample(name, model, samples_per_prompt)
        self._reference_rows = self._reference_rows or rows
        return self.add(name, rows, {**self._summarise(rows), **self._greedy(model), **self._pair_metrics(model)})

    def add(self, name: str, rows: list[dict[str, Any]], metrics: Mapping[str, Estimate]) -> dict[str, Any]:
        """Log a policy: its rows, then its summary, which commits them."""
        summary: dict[str, Any] = {
            "name": name,
            "metrics": {key: estimate.to_dict() for key, estimate in metrics.items()},
            "rows_end": append_jsonl(self._rows_path, rows),
        }
        begin = self.policies[-1]["rows_end"] if self.policies else 0
        summary["sha256"] = self._seal(summary, begin)
        append_jsonl(self._policies_path, [summary])
        self.policies.append(summary)
        return summary

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The logged rows of one policy, prompt-major."""
        return ranks.on_main(lambda: [row for row in read_jsonl(self._rows_path) if row["policy"] == name])

    def sample(self, name: str, model: nn.Module, samples_per_prompt: int | None = None) -> list[dict[str, Any]]:
        """Scored replies to the held-out prompts, prompt-major, drawn from the stream that `name` stands for."""
        stream = self.run.seed(f"evaluation/{name}", self.settings.seed)
        group = samples_per_prompt or self.settings.samples_per_prompt
        return self._sample_rows(name, model, self.sampler.sample(model, self.prompt_ids, group, stream))

    def _sample_rows(self, name: str, model: nn.Module, samples: Samples) -> list[dict[str, Any]]:
        """One row per reply, prompt-major."""
        group = len(samples.replies_BG[0])
        prompts = [text for text in self.prompts for _ in range(group)]
        token_rows = [(p, r) for p, replies in zip(samples.prompts, samples.replies_BG, strict=True) for r in replies]
        responses = [self.encoder.text(reply) for _, reply in token_rows]
        ended = [flag for flags in samples.ended_BG for flag in flags]
        oracle = self.run.corpus.oracle
        truth = oracle.measure(prompts, responses) if oracle else {}
        scored = self.reward(prompts, responses) if self.reward else None
        parts = {} if scored is None else scored.parts
        exact = {"proxy", *(f"reward/{name}" for name in parts)}  # so that re-scoring the file gives the same rewards
        columns: dict[str, Sequence[float | None]] = {
            **{f"reward/{name}": values.tolist() for name, values in parts.items()},
            "proxy": [None] * len(responses) if scored is None else scored.total_N.tolist(),
            "kl": self._kl(model, token_rows),
            **{key: truth[key].tolist() if key in truth else [None] * len(responses) for key in ("gold", *TRUTH)},
        }
        return [
            {
                "policy": name,
                "prompt_id": i // group,
                "sample_id": i % group,
                "prompt": prompts[i],
                "response": responses[i],
                "tokens": len(token_rows[i][1]),
                "ended": int(ended[i]),
                **{key: _number(values[i], exact=key in exact) for key, values in columns.items()},
            }
            for i in range(len(responses))
        ]

    def _kl(self, model: nn.Module, rows: Sequence[Row]) -> list[float]:
        if model is self.reference:
            return [0.0] * len(rows)
        found = torch.zeros(len(rows))
        temperature = self.rollout.temperature or 1.0

        def compute(batch: TokenBatch) -> torch.Tensor:
            return exact_kl(model, self.reference, batch, temperature=temperature).cpu()

        for index, kl_B in over_rows(rows, compute, 16384, self.run.device, [self.reference]):
            found[index] = kl_B
        return found.tolist()

    def _summarise(self, rows: Sequence[dict[str, Any]]) -> dict[str, Estimate]:
        clusters = np.array([row["prompt_id"] for row in rows])
        column = {key: _floats(rows, key) for key in SAMPLE_KEYS}
        base = {key: _floats(self._reference_rows, key) for key in ("gold", "proxy")}
        found = {
            key: clustered_rate(values, clusters) if key in RATES else clustered_mean(values, clusters)
            for key, values in column.items()
            if not np.isnan(values).all()
        }
        if rows[0]["policy"] == self._reference_rows[0]["policy"]:
            return found
        judge = "gold" if "gold" in found else "proxy" if "proxy" in found else None
        if judge:
            wins = np.sign(column[judge] - base[judge]) / 2 + 0.5
            found["win_rate"] = clustered_mean(wins, clusters)
        if "proxy" in found and far_enough(found["kl"]):
            found["reward_per_nat"] = ratio_of_means(column["proxy"] - base["proxy"], column["kl"], clusters)
        return found

    def _greedy(self, model: nn.Module) -> dict[str, Estimate]:
        """Accuracy of the most likely reply, for data with verifiable answers."""
        oracle = self.run.corpus.oracle
        if oracle is None or not self.run.corpus.answers:
            return {}
        samples = self.sampler.sample(model, self.prompt_ids, 1, 0, temperature=0.0)
        texts = [self.encoder.text(reply) for (reply,) in samples.replies_BG]
        correct = oracle.measure(self.prompts, texts)["correct"]
        return {"correct_greedy": clustered_rate(correct, np.arange(len(texts)))}

    def _pair_metrics(self, model: nn.Module) -> dict[str, Estimate]:
        """Metrics of held-out preference pairs (arXiv:2405.19534)."""
        if not self.run.corpus.preferences:
            return {}
        if self._reference_pairs is None:
            self._reference_pairs = pair_logps(self.reference, self.pairs, self.run.device)
        ref = self._reference_pairs
        now = ref if model is self.reference else pair_logps(model, self.pairs, self.run.device)
        _, clusters = np.unique(self.pair_prompts, return_inverse=True)
        found = {
            "chosen_logp_drift": clustered_mean((now.chosen - ref.chosen).double().numpy(), clusters),
            "ranking_accuracy": clustered_rate((now.chosen > now.rejected).double().numpy(), clusters),
        }
        if now is not ref:
            implicit = (now.chosen - ref.chosen > now.rejected - ref.rejected).double()
            found["implicit_accuracy"] = clustered_rate(implicit.numpy(), clusters)
        if self.beta and all(p is not None for p in self.p_chosen):
            probability = torch.tensor([float(p or 0) for p in self.p_chosen])
            found["idealised_ranking"] = clustered_rate(
                idealised_ranking(ref, probability, beta=self.beta).double().numpy(), clusters
            )
        return found


def held_out_evaluator(run: Run, reference: nn.Module, encoder: Encoder, reward: Reward | None) -> Evaluator:
    """For a stage that trains nothing: held-out pairs are cut to what a rollout may be long."""
    rollout = run.config.rollout
    window = rollout.max_prompt_tokens + rollout.max_new_tokens
    return Evaluator(run, reference.requires_grad_(False), encoder, reward, None, window)


def far_enough(kl: Estimate) -> bool:
    """Whether a policy is far enough from its reference for a gain per nat: near KL 0 the ratio is noise over nothing.

    The mean KL is at least LEAST_NATS, where a gain of .05 reads as one per nat; and its half-width at most half of it,
    so that the interval keeps clear of the pole at 0 and the delta method holds.
    """
    return kl.bounded and kl.mean >= LEAST_NATS and (kl.high - kl.low) / 2 <= kl.mean / 2


LEAST_NATS = 0.05
TRUTH = ("verbose", "garble", "correct")
RATES = (*TRUTH, "ended")


def _floats(rows: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    return np.array([math.nan if row[key] is None else row[key] for row in rows], dtype=np.float64)


def _number(value: float | None, *, exact: bool) -> float | None:
    """JSON has no NaN: an unscored value is null. What is not `exact` is rounded to six digits."""
    return None if value is None or math.isnan(value) else float(value) if exact else round(float(value), 6)
