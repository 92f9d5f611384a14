"""The subject of an examination: the model that a command would start from, its tokenizer, a few rows of its data."""

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
"""Pairs of the data whose texts are checked."""
ROW_TOKENS, REPLY_TOKENS, NEW_TOKENS = 128, 32, 16
"""Limits on the tokens of a computed row, of its reply, and of a sampled reply: enough to see a mistake."""


@dataclass
class Subject:
    """A model with everything that checks use.

    Attributes:
        model: what training would start from, an adapter included.
        encoder: its tokenizer.
        pairs: the first pairs of the data.
        config: the checked config of the command.
        folder: a temporary folder for what checks write.
        device: where the model is.
        source: folder or hub id of the model; None for a new one.
        what: one sentence on where the model comes from.
    """

    model: nn.Module
    encoder: Encoder
    pairs: Sequence[Pair]
    config: Config
    folder: Path
    device: str = "cpu"
    source: str | None = None
    what: str = ""

    @cached_property
    def max_length(self) -> int:
        """Tokens that a row of the command's algorithm may have."""
        return getattr(self.config.algorithm, "max_length", None) or 512

    @cached_property
    def full_rows(self) -> list[Row]:
        """Chosen and, where there is one, rejected reply of every pair as training sees them."""
        result = []
        for pair in self.pairs:
            chosen, rejected = pair_rows(self.encoder, pair, self.max_length)
            result += [chosen, rejected] if pair.rejected else [chosen]
        return result

    @cached_property
    def rows(self) -> list[Row]:
        """Four short rows: two prompts with two replies each, of different lengths where the data allow it."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or ROW_TOKENS
        total = min(ROW_TOKENS, int(positions) // 2)
        reply = min(REPLY_TOKENS, total // 2)
        replies = [tokens[:reply] for _, tokens in self.full_rows[:4]]
        prompts = list(dict.fromkeys(tuple(tokens[reply - total :]) for tokens, _ in self.full_rows))[:2]
        return [(list(prompts[index // 2 % len(prompts)]), tokens) for index, tokens in enumerate(replies)]

    @cached_property
    def batch(self) -> TokenBatch:
        """All rows at once, each computed whole."""
        return dataclasses.replace(self.shared_batch, prompt_of=None)

    @cached_property
    def shared_batch(self) -> TokenBatch:
        """All rows at once, their prompts computed once where that pays."""
        return TokenBatch.from_rows(self.rows, self.device)

    @cached_property
    def reference_logits(self) -> list[torch.Tensor]:
        """The model's own logits for every row by itself, each (T, V)."""
        with torch.no_grad():
            return [
                self.model(input_ids=torch.tensor([[*prompt, *reply]], device=self.device), use_cache=False).logits[0]
                for prompt, reply in self.rows
            ]

    @cached_property
    def tolerance(self) -> float:
        """Nats that float32 rounding may move a log-probability by: more where logits are large."""
        return 1e-4 + 1e-5 * max(float(logits_TV.abs().max()) for logits_TV in self.reference_logits)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def sampling(self) -> Local:
        """The sampler's settings, for short replies in the model's own arithmetic."""
        rollout = self.config.rollout
        # a sampler of a plug-in has these fields too
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
        return [list(prompt) for prompt in dict.fromkeys(tuple(prompt) for prompt, _ in self.rows)]

    @cached_property
    def saved(self) -> Path:
        """Folder with the model as a run would store it, an adapter merged."""
        path = self.folder / "model"
        save_model(self.model, self.encoder, path)
        return path

    def reference(self) -> nn.Module:
        """The frozen reference that training would compare the model with: another copy, or an adapter's base."""
        if has_adapter(self.model):
            return without_adapter(self.model)
        if self.source is None:
            return copy.deepcopy(self.model)
        return load_policy(self.source, self.config.model, device=self.device)

    def fresh(self) -> nn.Module:
        """A copy of the saved model, ready to train."""
        settings = self.config.model
        model = load_policy(self.saved, settings, device=self.device)
        return trainable(model, settings.lora, seed_for(0, "doctor/lora"))

    def training_run(self, name: str) -> Run:
        """A run directory of its own with a checkpoint after every step: float32, one process, no tracker."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        runtime = dataclasses.replace(self.config.runtime, dtype="float32")
        config = self.config.replace(
            sharding=Single(), tracker=Files(), checkpoint=Checkpoint(every_steps=1), runtime=runtime
        )
        return Run(folder, config, {})


def load_subject(stage: Stage, folder: Path) -> Subject:
    """The model and data of a planned stage. Builds nothing: where its policy is not stored, the stage's first model
    takes its place.

    Raises LabError, or what the libraries raise, when model, tokenizer or data cannot be loaded.
    """
    # what is checked to float32's precision is not stored in less
    settings = dataclasses.replace(stage.config.model, weights="float32", weights_of=RoleWeights())
    config = stage.config.replace(model=settings)
    source, what = _policy_source(stage)
    run = Run(folder, config, {"policy": source} if source else {})
    model, encoder = start_policy(run)
    if settings.lora.rank and not has_adapter(model):
        model = trainable(model, settings.lora, run.seed("lora"))
    pairs = run.corpus.train[:PAIRS]
    return Subject(model, encoder, pairs, config, folder, run.device, source, what)


def _policy_source(stage: Stage) -> tuple[str | None, str]:
    """Where the stage's policy is, None for a new model, and a sentence about it."""
    need = stage.needs.get("policy")
    settings = stage.config.model
    if isinstance(need, External):
        return need.source, f"needs.policy={need.source}"
    if isinstance(need, Stage) and need.result():
        return need.model, f"the policy of {need.recipe}, {need.folder}"
    if isinstance(settings, HuggingFace):
        return settings.path, f"model.path={settings.path}"
    return None, "a new model, not trained"
