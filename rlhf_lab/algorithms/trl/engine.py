"""Trains a stage with one of TRL's trainers. The native algorithm still makes the data, evaluates and reports.

TRL gets a twin of the model: another module tree around the very same parameters. TRL may patch, wrap and reconfigure
the twin as it likes; when it has trained, so is the algorithm's own model, and nothing is copied back.
"""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from torch import nn

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.trl import options
from rlhf_lab.algorithms.trl.rows import both_sides, divided, kto_batch, padded, reward_batch, sft_batch, unused_id
from rlhf_lab.config.root import Config
from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import OPTIONAL, MissingDependency, NumericError
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.training.loop import Algorithm, Interrupted, _graceful_stop
from rlhf_lab.training.run import Run

FOLDER = "trl"
"""TRL's working files in a run directory: its checkpoints, only while the stage is unfinished."""


def load(root: Config) -> Callable[[Algorithm, Run, str], None]:
    """`train`, once everything that it needs is known to be installed."""
    if importlib.util.find_spec("trl") is None:
        raise MissingDependency(*OPTIONAL["trl"])
    if options.trainer(root).samples and isinstance(root.rollout, Vllm) and importlib.util.find_spec("vllm") is None:
        raise MissingDependency(*OPTIONAL["vllm"])
    return train


def train(algorithm: Algorithm, run: Run, name: str) -> None:
    """Take the algorithm's remaining steps with TRL. Resumes from TRL's checkpoint when there is one."""
    logging.getLogger("trl").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # TRL's use of transformers, which no user can change
        _train(algorithm, run, name)


def _train(algorithm: Algorithm, run: Run, name: str) -> None:
    from transformers import PrinterCallback

    from rlhf_lab.algorithms.trl.callback import LabCallback

    state, run.checkpoint = run.checkpoint, None
    trainer = build(algorithm, run)
    first, saved = 0, None
    if state:
        first, saved = int(state["step"]), str(run.folder / FOLDER / state["trl"])
        algorithm.load_state_dict(state["algorithm"])
        run.rewind_log(state["log_size"])
    with progress(name, trainer.args.max_steps, first) as ticker, _graceful_stop() as stop:
        trainer.add_callback(LabCallback(algorithm, run, ticker, stop))
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=saved)
        if stop.is_set():
            raise Interrupted(f"stopped after step {trainer.state.global_step} of {trainer.args.max_steps}")


def build(algorithm: Algorithm, run: Run) -> Any:
    """The trainer of a stage, ready to train: one of the classes in `trainers.py`."""
    return _on_prompts(algorithm, run) if isinstance(algorithm, OnPolicy) else _on_corpus(algorithm, run)


def twin(model: nn.Module) -> Any:
    """A module tree of its own around the same parameters and buffers, without transformers' marks of an adapter.

    Its adapter is trained and saved like any other parameter: TRL knows adapters only in peft's own wrapper.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    found = copy.deepcopy(model, memo)
    for mark in ("peft_config", "_hf_peft_config_loaded"):
        found.__dict__.pop(mark, None)
    return found


def _trainer(algorithm: Algorithm, run: Run, steps: int, more: dict[str, Any]) -> Any:
    """Construct the stage's trainer. Argument classes and trainers of TRL load here."""
    import trl

    from rlhf_lab.algorithms.trl import trainers

    spec = options.trainer(run.config)
    seed = run.seed("trl") % 2**31
    values = options.arguments(run.config, device=run.device, folder=str(run.folder / FOLDER), seed=seed, steps=steps)
    model = twin(algorithm.model)
    if spec.samples:
        model.generation_config.eos_token_id = list(algorithm.encoder.stop_ids)  # as the lab's own sampler
    found = getattr(trainers, spec.name)(
        model=model,
        args=getattr(trl, spec.config)(**values),
        processing_class=copy.deepcopy(algorithm.encoder.tokenizer),
        **more,
    )
    found.lab = algorithm.settings
    return found


def _on_corpus(algorithm: Any, run: Run) -> Any:
    """SFT, reward model, DPO, KTO: the native engine's rows in the native engine's order."""
    from rlhf_lab.algorithms.trl.trainers import Batches

    kind = options.key(run.config)
    has_reference = kind in ("dpo", "kto")
    rows = algorithm.table.pairs if has_reference else algorithm.rows
    make, parts = _batch_maker(kind, algorithm), options.passes(run.config)
    batches, dropped = divided(algorithm.steps, parts)
    if dropped:
        run.note(f"{dropped} rows were left out where a step did not divide into {parts} equal forward passes")
    more = {
        "train_dataset": Dataset.from_dict({"index": list(range(len(rows)))}),
        "data_collator": lambda chosen: make([rows[row["index"]] for row in chosen]),
        **({"ref_model": twin(algorithm.reference)} if has_reference else {}),
    }
    trainer = _trainer(algorithm, run, len(batches) // parts, more)
    trainer.batches = Batches(batches)
    if kind == "reward_model":
        trainer.model.config.pad_token_id = _padding(algorithm)
    return trainer


def _padding(algorithm: Any) -> int:
    """A token id that ends no row of a reward model."""
    return unused_id(both_sides(algorithm.rows), algorithm.model.config.vocab_size)


def _batch_maker(kind: str, algorithm: Any) -> Callable[[Any], dict[str, torch.Tensor]]:
    """Rows of a forward pass → what the trainer reads."""
    if kind == "sft":
        return sft_batch
    if kind == "reward_model":
        return partial(reward_batch, pad_id=_padding(algorithm), margin=algorithm.settings.margin)
    if kind == "kto":
        return partial(kto_batch, max_length=algorithm.max_length)
    return lambda pairs: padded(both_sides(pairs))


def _on_prompts(algorithm: OnPolicy, run: Run) -> Any:
    """GRPO and RLOO: TRL samples and learns; prompts, reward and shaping are the lab's."""
    from rlhf_lab.algorithms.trl.reward import reward_function

    settings, prompts = algorithm.settings, run.corpus.prompts("train")
    copies = -(-settings.prompts_per_iteration // len(prompts))
    more = {
        "train_dataset": Dataset.from_dict({"prompt": prompts * copies}),
        "reward_funcs": reward_function(algorithm),
    }
    trainer = _trainer(algorithm, run, algorithm.total_steps, more)
    encoder = replace(algorithm.encoder, counts={})  # what it counts here says nothing about the corpus
    trainer.encode = partial(encoder.prompt, max_tokens=run.config.rollout.max_prompt_tokens)
    if trainer.ref_model is not None:  # TRL read it from disk; these are the same numbers and no second copy
        trainer.ref_model.load_state_dict(algorithm.reference.state_dict(), assign=True)
        trainer.ref_model.requires_grad_(False)
    _check_padding(trainer, algorithm, run)
    return trainer


@torch.no_grad()
def _check_padding(trainer: Any, algorithm: OnPolicy, run: Run) -> None:
    """TRL pads prompts on the left and hands no positions on: absolute positions would be others than in sampling."""
    texts = sorted(run.corpus.prompts("train")[:64], key=len)
    rows = [(trainer.encode(text), [algorithm.encoder.eos_id]) for text in (texts[0], texts[-1])]
    width = max(len(prompt) for prompt, _ in rows)
    ids = torch.tensor([[0] * (width - len(prompt)) + [*prompt, *reply] for prompt, reply in rows], device=run.device)
    mask = torch.tensor(
        [[0] * (width - len(prompt)) + [1] * (len(prompt) + 1) for prompt, _ in rows], device=run.device
    )
    theirs, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 1)
    ours = token_logps(
        algorithm.model, TokenBatch.from_rows(rows, run.device), temperature=algorithm.temperature
    ).logps_N
    gap = float((theirs[:, 0].float() - ours).abs().max())
    if gap > (1e-3 if run.config.runtime.dtype == "float32" else 0.5):
        raise NumericError(
            f"TRL's log-probabilities of padded prompts differ from the lab's by up to {gap:.2g} nats. TRL pads on the "
            "left and does not say where a prompt begins, which absolute positions need to know: use engine=native"
        )
