"""Base class of the codec language models that a worker serves. A subclass only computes the logits of columns.

Every model of the protocol has a delay pattern (columns.py), an optimizer and, if requested, an adapter (LoRA). A pass
contains the clips of one prompt, or of prompts with equally many tokens, so that nothing is padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rlhf_lab.models import lora
from rlhf_lab.models.settings import LoRA
from rlhf_lab.packs.speech.parler.columns import (
    ClipLogps,
    Codebooks,
    CodecClip,
    ColumnSampler,
    choices,
    clip_kl,
    clip_logps,
    decoder_inputs,
)

OPTIMIZER = "optimizer.pt"
"""Name of the file with the state of the optimizer, inside the directory of a saved model or adapter."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

SpokenText = tuple[str, str]
"""Text and description of a prompt."""
NextLogits = Callable[[Tensor], Tensor]
"""Function from the decoder inputs of one column (B, K) to the logits of the next column (B, K, V)."""


class ServedModel(ABC):
    """A codec language model with an optimizer.

    Attributes:
        model: the Hugging Face model.
        codebooks: the vocabulary of a column.
        rate: samples per second of the decoded audio.
        adapter_targets: names of the layers that an adapter changes; None is every linear layer of the blocks.
    """

    adapter_targets: tuple[str, ...] | None = None

    def __init__(self, model: Any, codebooks: Codebooks, rate: int):
        self.model = model.eval()
        self.codebooks = codebooks
        self.rate = rate
        self.optimizer: torch.optim.AdamW | None = None

    @classmethod
    @abstractmethod
    def import_packages(cls) -> None:
        """Import what the model needs, so that a missing package is reported when the worker starts."""

    @classmethod
    @abstractmethod
    def load(cls, directory: str, *, dtype: str, device: str, options: Mapping[str, Any]) -> ServedModel:
        """Load a model in Hugging Face format.

        Args:
            directory: directory or hub id of the model.
            options: further settings of this kind of model.
        """

    @abstractmethod
    def save(self, directory: Path, *, with_optimizer: bool = False) -> None:
        """Write weights, configuration and tokenizers, with the adapter merged into the weights."""

    @abstractmethod
    def next_logits(self, prompts: Sequence[SpokenText], clips: int) -> NextLogits:
        """Process a batch of prompts (see `batches`) for sampling, `clips` adjacent rows for each prompt."""

    @abstractmethod
    def logits(self, prompt: SpokenText, inputs_BKL: Tensor) -> Tensor:
        """Return the logits of all columns of clips of one prompt, (B, K, L, V)."""

    def batches(self, prompts: Sequence[SpokenText]) -> list[list[int]]:
        """Return the indices of prompts that are sampled together; by default each prompt is a batch of its own."""
        return [[index] for index in range(len(prompts))]

    @abstractmethod
    def decode(self, codes_TK: Tensor) -> Tensor:
        """Decode the audio of a clip, (samples,) float32."""

    def trained(self) -> list[torch.nn.Parameter]:
        """Return the parameters that an optimizer step changes."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def add_adapter(self, settings: Mapping[str, Any], seed: int) -> None:
        """Add an adapter, which is then the only part that is trained.

        Args:
            settings: fields of `LoRA`. Without `targets`, they are `adapter_targets`.
        """
        adapter = LoRA(**settings)
        if adapter.targets is None and self.adapter_targets is not None:
            adapter = LoRA(**{**settings, "targets": list(self.adapter_targets)})
        lora.add_adapter(self.model, adapter, seed)
        self.optimizer = None

    def save_adapter(self, directory: Path, *, with_optimizer: bool = False) -> None:
        """Write the adapter in peft's format."""
        lora.save_adapter(self.model, directory)
        self.save_optimizer(directory, with_optimizer=with_optimizer)

    def load_adapter(self, directory: Path) -> None:
        """Read the weights of the adapter that `save_adapter` wrote."""
        import peft

        stored = load_file(directory / lora.ADAPTER_WEIGHTS)
        tensors = {name.removeprefix(lora.PREFIX): tensor for name, tensor in stored.items()}
        loaded: Any = peft.set_peft_model_state_dict(self.model, tensors, adapter_name=lora.NAME)
        if loaded.unexpected_keys:
            raise ValueError(f"{directory} does not fit the adapter: it has {loaded.unexpected_keys[0]}")

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Turn the adapter off, so that the model is the one that was loaded."""
        if not lora.has_adapter(self.model):
            raise RuntimeError("the model has no adapter, so the model that was loaded is not known any more")
        self.model.disable_adapters()
        try:
            yield
        finally:
            self.model.enable_adapters()

    def save_optimizer(self, directory: Path, *, with_optimizer: bool) -> None:
        """Write the state of the optimizer if `with_optimizer` is True and a step was taken."""
        if with_optimizer and self.optimizer is not None:
            torch.save(self.optimizer.state_dict(), directory / OPTIMIZER)

    def load_optimizer(self, directory: Path) -> None:
        """Read the state of the optimizer that `save` or `save_adapter` wrote."""
        self.optimizer = torch.optim.AdamW(self.trained())
        state = torch.load(directory / OPTIMIZER, weights_only=True)
        self.optimizer.load_state_dict(state)

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[SpokenText], *, clips: int, max_frames: int, temperature: float, seeds: Sequence[int]
    ) -> list[tuple[CodecClip, ClipLogps]]:
        """Sample clips column by column. Returns them, prompt-major, with their log-probabilities.

        Args:
            seeds: seed of each prompt.
        """
        samplers = [
            ColumnSampler(clips, self.codebooks, max_frames=max_frames, temperature=temperature, seed=seed)
            for seed in seeds
        ]
        for batch in self.batches(prompts):
            next_logits = self.next_logits([prompts[i] for i in batch], clips)
            running = [samplers[i] for i in batch]
            while not all(sampler.is_complete for sampler in running):
                inputs_BK = torch.cat([sampler.inputs() for sampler in running])
                logits_BKV = next_logits(inputs_BK)
                # a complete sampler ignores further columns
                for sampler, own_BKV in zip(running, logits_BKV.split(clips), strict=True):
                    sampler.draw(own_BKV)
        return [sampled for sampler in samplers for sampled in sampler.clips()]

    def logps(self, prompt: SpokenText, clips: Sequence[CodecClip], *, temperature: float) -> list[ClipLogps]:
        """Return differentiable log-probabilities of clips of one prompt, from one pass over all columns."""
        options_BKLC = self._choices(prompt, clips, temperature)
        return [clip_logps(options_BKLC[row], clip, self.codebooks) for row, clip in enumerate(clips)]

    @torch.no_grad()
    def kl(self, prompt: SpokenText, clips: Sequence[CodecClip], *, temperature: float) -> list[Tensor]:
        """Return KL(model ‖ model without its adapter) of clips of one prompt in nats."""
        policy_BKLC = self._choices(prompt, clips, temperature)
        with self.without_adapter():
            reference_BKLC = self._choices(prompt, clips, temperature)
        return [clip_kl(policy_BKLC[row], reference_BKLC[row], clip) for row, clip in enumerate(clips)]

    def step(self, *, lr: float, weight_decay: float, max_grad_norm: float) -> dict[str, float]:
        """Take one step of AdamW on the accumulated gradients, then clear them.

        Returns gradient norms before clipping: one for each sub-module of the model, and `all` for all parameters.
        """
        trained = self.trained()
        if self.optimizer is None:
            self.optimizer = torch.optim.AdamW(trained)
        # the client may change the learning rate at each step
        for group in self.optimizer.param_groups:
            group.update(lr=lr, weight_decay=weight_decay)
        norms = {name: _gradient_norm(part) for name, part in self.model.named_children()}
        norms["all"] = float(torch.nn.utils.clip_grad_norm_(trained, max_grad_norm))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norms

    def _choices(self, prompt: SpokenText, clips: Sequence[CodecClip], temperature: float) -> Tensor:
        inputs_BKL = decoder_inputs(clips, self.codebooks).to(self.model.device)
        return choices(self.logits(prompt, inputs_BKL), self.codebooks, temperature=temperature)


def _gradient_norm(part: torch.nn.Module) -> float:
    gradients = [parameter.grad.flatten() for parameter in part.parameters() if parameter.grad is not None]
    return float(torch.cat(gradients).norm()) if gradients else 0.0
