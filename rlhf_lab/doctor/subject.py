"""Subject of an examination: the model that a command would start from, its tokenizer, a few rows of its data."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import nn

from rlhf_lab.config.root import Config
from rlhf_lab.core.machine import main_memory
from rlhf_lab.core.types import Pair
from rlhf_lab.models.build import load_policy, save_model
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.lora import has_adapter, trainable, without_adapter
from rlhf_lab.models.pair_rows import pair_rows
from rlhf_lab.models.settings import HuggingFace, RoleWeights
from rlhf_lab.sampling.settings import Local, Vllm
from rlhf_lab.stages.artifacts import External, Stage
from rlhf_lab.trackers.settings import Files
from rlhf_lab.training.run import Run, seed_for
from rlhf_lab.training.run_settings import Checkpoint
from rlhf_lab.training.sharding.settings import Single
from rlhf_lab.training.start import start_policy

PAIRS = 64
"""Maximum number of pairs of the data whose texts are checked."""
ROW_TOKENS, REPLY_TOKENS, NEW_TOKENS = 128, 32, 16
"""Limits on the tokens of a computed row, of its response, and of a sampled response: enough to show a mistake."""


@dataclass
class ExaminedModel:
    """Model with everything that the checks use.

    Attributes:
        model: model that training would start from, including an adapter.
        pairs: the first pairs of the data.
        directory: temporary directory for files that checks write.
        source: directory or hub id of the model; None for a new one.
        what: one sentence on where the model comes from.
    """

    model: nn.Module
    encoder: Encoder
    pairs: Sequence[Pair]
    config: Config
    directory: Path
    device: str = "cpu"
    source: str | None = None
    what: str = ""

    @cached_property
    def max_length(self) -> int:
        """Maximum number of tokens of a row in the command's algorithm."""
        return getattr(self.config.algorithm, "max_length", None) or 512

    @cached_property
    def full_rows(self) -> list[Row]:
        """Chosen and, if present, rejected response of every pair, as training sees them."""
        result = []
        for pair in self.pairs:
            chosen, rejected = pair_rows(self.encoder, pair, self.max_length)
            result += [chosen, rejected] if pair.rejected else [chosen]
        return result

    @cached_property
    def rows(self) -> list[Row]:
        """Four short rows: two prompts with two responses each, of different lengths if the data allow it."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or ROW_TOKENS
        total = min(ROW_TOKENS, int(positions) // 2)
        response = min(REPLY_TOKENS, total // 2)
        # Cut responses at the end and prompts at the start, so that the tokens next to their boundary stay.
        responses = [tokens[:response] for _, tokens in self.full_rows[:4]]
        distinct = dict.fromkeys(tuple(tokens[response - total :]) for tokens, _ in self.full_rows)
        prompts = list(distinct)[:2]
        # two responses for each prompt
        return [(list(prompts[i // 2 % len(prompts)]), tokens) for i, tokens in enumerate(responses)]

    @cached_property
    def batch(self) -> TokenBatch:
        return dataclasses.replace(self.shared_batch, prompt_of=None)

    @cached_property
    def shared_batch(self) -> TokenBatch:
        """All rows in one batch; prompts are computed once if that is faster."""
        return TokenBatch.from_rows(self.rows, self.device)

    @cached_property
    def reference_logits(self) -> list[torch.Tensor]:
        """The model's own logits for every row, computed one at a time, each (T, V)."""
        # One row at a time, so that the reference does not depend on batching or padding.
        logits = []
        with torch.no_grad():
            for prompt, response in self.rows:
                ids = torch.tensor([[*prompt, *response]], device=self.device)
                logits.append(self.model(input_ids=ids, use_cache=False).logits[0])
        return logits

    @cached_property
    def tolerance(self) -> float:
        """Maximum change of a log-probability by float32 rounding, in nats; it grows with the size of the logits."""
        return 1e-4 + 1e-5 * max(float(logits_TV.abs().max()) for logits_TV in self.reference_logits)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def sampling(self) -> Local:
        """Settings of the sampler, for short responses in the model's own precision (dtype)."""
        rollout = self.config.rollout
        # A sampler of a plug-in has the fields of `Local` as well.
        local = rollout.local() if isinstance(rollout, Vllm) else cast(Local, rollout)
        return dataclasses.replace(
            local,
            max_new_tokens=min(NEW_TOKENS, local.max_new_tokens),
            dtype="model",
            temperature=local.temperature or 1.0,
        )

    @cached_property
    def prompts(self) -> list[list[int]]:
        """The distinct prompts of `rows`."""
        distinct = dict.fromkeys(tuple(prompt) for prompt, _ in self.rows)
        return [list(prompt) for prompt in distinct]

    @cached_property
    def saved(self) -> Path:
        """Directory with the model as a run would store it, with an adapter merged."""
        path = self.directory / "model"
        save_model(self.model, self.encoder, path)
        return path

    def fitting_copies(self) -> float:
        """Return how many float32 copies of the model fit into the free memory of its device."""
        free = float("inf")
        if torch.device(self.device).type == "cuda":
            free = torch.cuda.mem_get_info()[0]
        elif memory := main_memory():
            free = memory.free
        return free / (4 * self.parameters)

    def reference(self) -> nn.Module:
        """Return the frozen reference of training: another copy of the model, or the base of an adapter."""
        if has_adapter(self.model):
            return without_adapter(self.model)
        if self.source is None:
            return copy.deepcopy(self.model)
        return load_policy(self.source, self.config.model, device=self.device)

    def load_fresh_copy(self) -> nn.Module:
        """Return a copy of the saved model, ready to train."""
        settings = self.config.model
        model = load_policy(self.saved, settings, device=self.device)
        return trainable(model, settings.lora, seed_for(0, "doctor/lora"))

    def training_run(self, name: str) -> Run:
        """Return a run in a separate directory: float32, one process, no tracker, a checkpoint after every step."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        runtime = dataclasses.replace(self.config.runtime, dtype="float32")
        config = self.config.replace(
            sharding=Single(), tracker=Files(), checkpoint=Checkpoint(every_steps=1), runtime=runtime
        )
        return Run(directory, config, {})


def load_subject(stage: Stage, directory: Path) -> ExaminedModel:
    """Load the model and data of a planned stage. Nothing is built: if the stage's policy is not stored, the model
    that the first stage would start from is used.

    Raises:
        LabError: model, tokenizer or data cannot be loaded. Errors of libraries are passed on.
    """
    # The checks need float32 precision, so weights are loaded in float32 whatever the config says.
    settings = dataclasses.replace(stage.config.model, weights="float32", weights_of=RoleWeights())
    config = stage.config.replace(model=settings)
    source, what = _policy_source(stage)
    run = Run(directory, config, {"policy": source} if source else {})
    model, encoder = start_policy(run)
    if settings.lora.rank and not has_adapter(model):
        model = trainable(model, settings.lora, run.seed("lora"))
    pairs = run.corpus.train[:PAIRS]
    return ExaminedModel(model, encoder, pairs, config, directory, run.device, source, what)


def _policy_source(stage: Stage) -> tuple[str | None, str]:
    """Return the location of the stage's policy (None for a new model) and a sentence about it."""
    need = stage.needs.get("policy")
    settings = stage.config.model
    if isinstance(need, External):
        return need.source, f"needs.policy={need.source}"
    if isinstance(need, Stage) and need.result():
        return need.model, f"the policy of {need.recipe}, {need.directory}"
    if isinstance(settings, HuggingFace):
        return settings.path, f"model.path={settings.path}"
    return None, "a new model, not trained"
