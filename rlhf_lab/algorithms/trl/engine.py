"""Training of a stage with one of TRL's trainers. The native algorithm still prepares data, evaluates and reports.

TRL gets a twin of the model: another module tree around the same parameters. TRL may patch, wrap and reconfigure the
twin. Training the twin also trains the algorithm's own model, so nothing is copied back.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.policy_gradient.rollouts import group_metrics, penalty_means, truth_means
from rlhf_lab.algorithms.preference.dpo import UnpairedKTO
from rlhf_lab.algorithms.trl import options
from rlhf_lab.config.root import Config
from rlhf_lab.core.episodes import Episode, Segment
from rlhf_lab.core.errors import OPTIONAL, MissingDependency, NumericError
from rlhf_lab.core.progress import progress
from rlhf_lab.losses.policy import k1, k3
from rlhf_lab.models.encoding import Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.pair_rows import PairRows, chosen_then_rejected, shifted_rows
from rlhf_lab.models.turns import MaskedRow
from rlhf_lab.sampling.experience import EpisodeGroup, Experience, episodes_of
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.training.loop import Algorithm, Interrupted, _graceful_stop
from rlhf_lab.training.run import Run

BatchMaker = Callable[[Sequence[Any]], dict[str, torch.Tensor]]
"""Rows or pairs of rows of a forward pass → tensors that a trainer reads."""


def padded(rows: Sequence[Row], pad_id: int = 0) -> dict[str, torch.Tensor]:
    """Return right-padded rows, each (B, T); masks are computed from lengths."""
    token_ids = [[*prompt, *response] for prompt, response in rows]
    is_token = [[1] * len(ids) for ids in token_ids]
    is_response = [[0] * len(prompt) + [1] * len(response) for prompt, response in rows]
    return {
        "input_ids": _pad(token_ids, pad_id),
        "attention_mask": _pad(is_token),
        "completion_mask": _pad(is_response),
    }


def _pad(rows: Sequence[Sequence[int]], value: int = 0, side: str = "right") -> torch.Tensor:
    return pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=value, padding_side=side)


def sft_batch(rows: Sequence[MaskedRow]) -> dict[str, torch.Tensor]:
    """Return a batch whose labels are −100, except on learned response tokens."""
    batch = padded([row for row, _ in rows])
    # Not all response tokens are learned: a conversation also contains turns of other roles.
    learned = batch.pop("completion_mask").bool()
    for index, ((prompt, response), mask) in enumerate(rows):
        end = len(prompt) + len(response)
        learned[index, len(prompt) : end] &= torch.tensor(mask)
    return {**batch, "labels": batch["input_ids"].masked_fill(~learned, -100)}


def reward_batch(pairs: Sequence[PairRows], pad_id: int, margin: float) -> dict[str, torch.Tensor]:
    """Return a batch of both sides, padded with `pad_id`.

    Hugging Face scores the last token that differs from `pad_id`, so no response may end with it.
    """
    batch = padded(chosen_then_rejected(pairs), pad_id)
    del batch["completion_mask"]
    return {**batch, "margin": torch.full((len(pairs),), margin)}


def kto_batch(pairs: Sequence[PairRows], max_length: int) -> dict[str, torch.Tensor]:
    """Return each side as a separate example; see `unpaired_kto_batch`."""
    liked = [True] * len(pairs) + [False] * len(pairs)
    return unpaired_kto_batch(list(zip(chosen_then_rejected(pairs), liked, strict=True)), max_length)


def unpaired_kto_batch(examples: Sequence[tuple[Row, bool]], max_length: int) -> dict[str, torch.Tensor]:
    """Return single responses with their labels, and the mismatched prompts and responses of KTO's KL estimate."""
    rows = [row for row, _ in examples]
    shifted = {f"KL_{name}": values for name, values in padded(shifted_rows(rows, max_length)).items()}  # TRL's prefix
    return {**padded(rows), **shifted, "label": torch.tensor([liked for _, liked in examples])}


def unused_id(rows: Sequence[Row], vocabulary: int) -> int:
    """Return the smallest token id with which no row ends."""
    last_ids = {(response or prompt)[-1] for prompt, response in rows}
    return next(i for i in range(vocabulary) if i not in last_ids)


def deal_rows(steps: Sequence[Sequence[int]], parts: int) -> tuple[list[list[int]], int]:
    """Split every step into `parts` equal forward passes; return them and the number of dropped rows.

    A full batch splits evenly, but the last step of an epoch may not. Its remainder is dropped, because TRL gives all
    passes the same weight.
    """
    batches: list[list[int]] = []
    dropped = 0
    for step in steps:
        size = len(step) // parts
        dropped += len(step) - size * parts
        if size:
            starts = range(0, size * parts, size)
            batches += [list(step[start : start + size]) for start in starts]
    return batches, dropped


def reward_function(algorithm: OnPolicy) -> Callable[..., list[float | None]]:
    """Return a function with TRL's signature: the shaped score of each response, None if the reward abstains."""
    encoder, rollouts, shaper = algorithm.encoder, algorithm.rollouts, algorithm.shaper
    group_size = algorithm.settings.group_size
    max_prompt_tokens = algorithm.run.config.rollout.max_prompt_tokens
    encode = partial(encoder.uncounted().prompt, max_tokens=max_prompt_tokens)
    corpus = algorithm.run.corpus

    def episode_of(prompt: str, prompt_ids: list[int], response_ids: list[int]) -> Episode:
        finished = bool(response_ids) and response_ids[-1] in encoder.stop_ids
        segment = Segment(response_ids, sampled=True)  # TRL passes no log-probabilities
        return Episode(corpus.task(prompt), prompt, encoder.text(response_ids), prompt_ids, (segment,), finished)

    def reward(
        prompts: list[str], completion_ids: list[list[int]], trainer_state: Any, **_columns: Any
    ) -> list[float | None]:
        # TRL repeats each prompt for its group, so every distinct prompt is tokenised once.
        encoded = {prompt: encode(prompt) for prompt in dict.fromkeys(prompts)}
        episodes = [
            episode_of(prompt, encoded[prompt], response_ids)
            for prompt, response_ids in zip(prompts, completion_ids, strict=True)
        ]
        batch = rollouts.reward(episodes)
        rollouts.reward.observe(batch)
        rewards = batch.total_N
        shaper.observe(rewards)
        scores = shaper(rewards, [len(ids) for ids in completion_ids], [episode.finished for episode in episodes])
        groups = []
        for start in range(0, len(prompts), group_size):  # TRL passes the responses to a prompt next to each other
            members = slice(start, start + group_size)
            groups.append(
                EpisodeGroup(
                    episodes[start].task,
                    episodes[members],
                    rewards=rewards[members].tolist(),
                    scores=scores[members].tolist(),
                )
            )
        algorithm.generated += sum(map(len, completion_ids))
        rollouts.groups += len(groups)
        rollouts.wasted += sum(group.wasted for group in groups)
        truth = algorithm.run.measure_samples(episodes)
        metrics = group_metrics(groups) | penalty_means(shaper, groups) | truth_means(truth)
        metrics |= algorithm.monitor.see_groups(groups)
        if algorithm.beta or algorithm.settings.log_kl:
            metrics |= _measure_kl(algorithm, groups)
        algorithm.run.log(trainer_state.global_step, **metrics)
        return [float(score) if np.isfinite(score) else None for score in scores]

    return reward


@torch.no_grad()
def _measure_kl(algorithm: OnPolicy, groups: list[EpisodeGroup]) -> dict[str, float]:
    """Return KL to the reference and entropy of the samples; names as in `algorithms/metrics.py`."""
    experience = Experience.of(episodes_of(groups))

    def logps(model: nn.Module) -> torch.Tensor:
        return algorithm.per_token(
            experience, lambda batch: token_logps(model, batch, temperature=algorithm.temperature).logps_N
        )

    policy_N = logps(algorithm.model)
    ref_N = logps(algorithm.reference)
    return {
        "kl": float(experience.row_sums(k1(policy_N, ref_N)).mean()),
        "kl_k3": float(experience.row_sums(k3(policy_N, ref_N)).mean()),
        "entropy": float(-policy_N.mean()),
    }


FOLDER = "trl"
"""Directory of TRL's working files in a run directory. It holds TRL's checkpoints while the stage is unfinished."""


def load(root: Config) -> Callable[[Algorithm, Run, str], None]:
    """Return `train`. Raise MissingDependency without TRL, or without vLLM if TRL has to sample with it."""
    if importlib.util.find_spec("trl") is None:
        raise MissingDependency(*OPTIONAL["trl"])
    if options.trainer(root).samples and isinstance(root.rollout, Vllm) and importlib.util.find_spec("vllm") is None:
        raise MissingDependency(*OPTIONAL["vllm"])
    return train


def train(algorithm: Algorithm, run: Run, name: str) -> None:
    """Take the algorithm's remaining steps with TRL. Resume from TRL's checkpoint if it exists."""
    logging.getLogger("trl").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # raised by TRL's use of transformers, not by users
        _train(algorithm, run, name)


def _train(algorithm: Algorithm, run: Run, name: str) -> None:
    from transformers import PrinterCallback

    from rlhf_lab.algorithms.trl.trainers import LabCallback

    state, run.checkpoint = run.checkpoint, None
    trainer = build(algorithm, run)
    first_step = 0
    trl_checkpoint = None
    if state:
        first_step = int(state["step"])
        trl_checkpoint = str(run.directory / FOLDER / state["trl"])
        algorithm.load_state_dict(state["algorithm"])
    with progress(name, trainer.args.max_steps, first_step) as ticker, _graceful_stop(run.stopping):
        trainer.add_callback(LabCallback(algorithm, run, ticker, run.stopping))
        trainer.remove_callback(PrinterCallback)  # it would print every log, which the ticker already shows
        trainer.train(resume_from_checkpoint=trl_checkpoint)
        if run.stopping.is_set():
            raise Interrupted(f"stopped after step {trainer.state.global_step} of {trainer.args.max_steps}")


def build(algorithm: Algorithm, run: Run) -> Any:
    """Return the trainer of a stage, ready to train: an instance of a class in `trainers.py`."""
    if isinstance(algorithm, OnPolicy):
        return _build_on_prompts(algorithm, run)
    return _build_on_corpus(algorithm, run)


def twin(model: nn.Module) -> Any:
    """Copy the module tree around the same parameters and buffers, without the attributes that mark a peft adapter.

    The twin's adapter is trained and saved like any other parameter, because TRL supports adapters only in peft's own
    wrapper.
    """
    # deepcopy returns objects in `memo` instead of copying them.
    tensors = (*model.parameters(), *model.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    copied = copy.deepcopy(model, memo)
    for mark in ("peft_config", "_hf_peft_config_loaded"):
        copied.__dict__.pop(mark, None)
    return copied


def _construct_trainer(algorithm: Algorithm, run: Run, steps: int, inputs: dict[str, Any]) -> Any:
    """Construct the stage's trainer. TRL's argument classes and trainers are imported here.

    Args:
        steps: optimiser steps of the run.
        inputs: arguments that differ between trainers: dataset, collator, reference model, reward functions.
    """
    import trl

    from rlhf_lab.algorithms.trl import trainers

    spec = options.trainer(run.config)
    seed = run.seed("trl") % 2**31
    values = options.arguments(
        run.config, device=run.device, directory=str(run.directory / FOLDER), seed=seed, steps=steps
    )
    model = twin(algorithm.model)
    if spec.samples:
        model.generation_config.eos_token_id = list(algorithm.encoder.stop_ids)  # as in rlhf_lab's own sampler
    trainer_class = getattr(trainers, spec.name)
    config_class = getattr(trl, spec.config)
    trainer = trainer_class(
        model=model, args=config_class(**values), processing_class=copy.deepcopy(algorithm.encoder.tokenizer), **inputs
    )
    trainer.lab = algorithm.settings
    return trainer


def _build_on_corpus(algorithm: Any, run: Run) -> Any:
    """Build the trainer of SFT, reward model, DPO or KTO with the native engine's rows in their order."""
    from rlhf_lab.algorithms.trl.trainers import Batches

    spec = options.trainer(run.config)
    if isinstance(algorithm, UnpairedKTO):
        rows: Any = list(zip(algorithm.rows, algorithm.liked, strict=True))
    else:
        rows = algorithm.table.pairs if spec.has_reference else algorithm.rows
    make_batch = BATCH_MAKERS[spec.name](algorithm)
    passes = options.passes(run.config)
    batches, dropped = deal_rows(algorithm.steps, passes)
    if dropped:
        run.note(f"{dropped} rows were dropped because a step did not split into {passes} equal forward passes")
    # TRL's dataset contains only positions; the collator looks up the tokenised rows.
    inputs: dict[str, Any] = {
        "train_dataset": Dataset.from_dict({"index": list(range(len(rows)))}),
        "data_collator": lambda examples: make_batch([rows[example["index"]] for example in examples]),
    }
    if spec.has_reference:
        inputs["ref_model"] = twin(algorithm.reference)
    trainer = _construct_trainer(algorithm, run, len(batches) // passes, inputs)
    trainer.batches = Batches(batches)
    if spec.name == "RewardTrainer":
        trainer.model.config.pad_token_id = _reward_padding_id(algorithm)
    return trainer


def _reward_padding_id(algorithm: Any) -> int:
    """Return a token id with which no row of a reward model ends."""
    return unused_id(chosen_then_rejected(algorithm.rows), algorithm.model.config.get_text_config().vocab_size)


def _reward_batch_maker(algorithm: Any) -> BatchMaker:
    return partial(reward_batch, pad_id=_reward_padding_id(algorithm), margin=algorithm.settings.margin)


def _kto_batch_maker(algorithm: Any) -> BatchMaker:
    make_batch = unpaired_kto_batch if isinstance(algorithm, UnpairedKTO) else kto_batch
    return partial(make_batch, max_length=algorithm.max_length)


def _pair_batch(pairs: Sequence[PairRows]) -> dict[str, torch.Tensor]:
    return padded(chosen_then_rejected(pairs))


BATCH_MAKERS: dict[str, Callable[[Any], BatchMaker]] = {
    "SFTTrainer": lambda algorithm: sft_batch,
    "RewardTrainer": _reward_batch_maker,
    "DPOTrainer": lambda algorithm: _pair_batch,
    "KTOTrainer": _kto_batch_maker,
}
"""TRL trainer → function of an algorithm that returns its batch maker: rows of a forward pass → tensors for TRL."""


def _build_on_prompts(algorithm: OnPolicy, run: Run) -> Any:
    """Build the trainer of GRPO or RLOO. TRL samples and learns; prompts, reward and shaping are rlhf_lab's."""
    prompts = run.corpus.prompts("train")
    # TRL drops an incomplete iteration, so the dataset needs prompts for at least one. The division rounds up.
    copies = -(-algorithm.settings.prompts_per_iteration // len(prompts))
    inputs = {
        "train_dataset": Dataset.from_dict({"prompt": prompts * copies}),
        "reward_funcs": reward_function(algorithm),
    }
    trainer = _construct_trainer(algorithm, run, algorithm.total_steps, inputs)
    encoder = algorithm.encoder.uncounted()  # its counts must not enter the corpus report
    trainer.encode = partial(encoder.prompt, max_tokens=run.config.rollout.max_prompt_tokens)
    if trainer.ref_model is not None:
        # TRL loaded its reference from disk. Assigning the same values avoids a second copy in memory.
        trainer.ref_model.load_state_dict(algorithm.reference.state_dict(), assign=True)
        trainer.ref_model.requires_grad_(False)
    _check_padding(trainer, algorithm, run)
    return trainer


@torch.no_grad()
def _check_padding(trainer: Any, algorithm: OnPolicy, run: Run) -> None:
    """Raise NumericError if left padding changes log-probabilities.

    TRL pads prompts on the left and passes no positions, so a model with absolute positions would see other positions
    than in sampling. TRL and rlhf_lab both score a short and a long prompt, each with a one-token response.
    """
    by_length = sorted(run.corpus.prompts("train")[:64], key=len)
    response = [algorithm.encoder.eos_id]
    shortest_and_longest = (by_length[0], by_length[-1])
    rows = [(trainer.encode(text), response) for text in shortest_and_longest]
    token_ids = [[*prompt, *response] for prompt, response in rows]
    ids = _pad(token_ids, side="left").to(run.device)
    mask = _pad([[1] * len(row) for row in token_ids], side="left").to(run.device)
    trl_logps, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 1)
    batch = TokenBatch.from_rows(rows, run.device)
    lab_logps_N = token_logps(algorithm.model, batch, temperature=algorithm.temperature).logps_N
    gap = float((trl_logps[:, 0].float() - lab_logps_N).abs().max())
    # bfloat16 logits of equal inputs may differ by tenths of a nat
    tolerance = 1e-3 if run.config.runtime.dtype == "float32" else 0.5
    if gap > tolerance:
        raise NumericError(
            f"TRL's log-probabilities of padded prompts differ from rlhf_lab's by up to {gap:.2g} nats. TRL pads on "
            "the left without passing positions, which this model needs; use engine=native"
        )
