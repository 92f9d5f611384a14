"""Settings of every model (`model=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config import registry, schema
from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Gt, NotEmpty
from rlhf_lab.models import families

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

Tuned = dict[str, dict[str, Any]]
"""Algorithm (or `rollout`) → setting → value."""


@dataclass(frozen=True)
class LoRA(CheckedSettings):
    """Train an adapter on a frozen model instead of all parameters (arXiv:2106.09685). Needs `rlhf_lab[lora]`.

    There is no dropout: a log-probability does not depend on the call.

    Args:
        rank: columns of the adapter; 0 trains all parameters and leaves the rest of this section without effect.
        alpha: the adapter's product counts alpha/rank times. Kept fixed over ranks, the same learning rate moves the
            policy equally far at each (measured: KL 0.19, 0.17, 0.18 at ranks 4, 8, 16; with 2·rank 0.07, 0.17, 0.40).
        targets: layers by the end of their names, e.g. [q_proj,v_proj]; null is every linear layer of the blocks. The
            embeddings and the output head have none.
        rslora: count it alpha/√rank times instead (arXiv:2312.03732).
        lr_multiple: an algorithm's own `lr`, and the one that `tuned` names, are for all parameters; under AdamW an
            adapter takes this many times it (https://thinkingmachines.ai/blog/lora). A written `algorithm.lr` is taken
            as it is. Muon's steps have a size of their own: its rates stay.
    """

    rank: Annotated[int, Ge(0, hint="0 trains all parameters")] = 0
    alpha: Annotated[float, Gt(0)] = 16.0
    targets: Annotated[list[str], NotEmpty(hint="null is every linear layer")] | None = None
    rslora: bool = False
    lr_multiple: Annotated[float, Gt(0)] = 10.0


Stored = Literal["float32", "bfloat16", "nf4"]
WeightsOf = Literal["policy", "reference", "reward"]


@dataclass(frozen=True)
class RoleWeights:
    """How the weights of a role are stored; null is as `model.weights` says.

    Args:
        policy: policies that are sampled or measured, and what an adapter is trained on.
        reference: of DPO and of a KL penalty.
        reward: reward models.
    """

    policy: Stored | None = None
    reference: Stored | None = None
    reward: Stored | None = None


@dataclass(frozen=True)
class Weights(Section):
    """How weights are stored that are not trained as a whole; see `models/weights.py`.

    Args:
        weights: of reference and reward models, of policies that are sampled or measured, and of what an adapter is
            trained on. `bfloat16` takes half the memory and `nf4` (needs `rlhf_lab[quantized]`) about a seventh of it;
            all passes of such a model are in bfloat16 then. What is trained is float32 in any case.
        weights_of: the same for one role alone, e.g. {reward: bfloat16}.
    """

    inherited: ClassVar[bool] = True
    keyed_if_set: ClassVar[tuple[str, ...]] = ("weights", "weights_of")
    weights: Stored = "float32"
    weights_of: RoleWeights = field(default_factory=RoleWeights)

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("model", self)] if "model" in config.algorithm.uses else []

    def stored(self, role: WeightsOf) -> Stored:
        """How the weights of a role are stored."""
        roles = self.weights_of
        written = {"policy": roles.policy, "reference": roles.reference, "reward": roles.reward}
        return written[role] or self.weights


@register("model", "scratch")
@dataclass(frozen=True)
class Scratch(Weights):
    """A small transformer built from these numbers, with a tokenizer trained on the data. Downloads nothing.

    Args:
        family: `llama` (rotary, RMSNorm, gated MLP), `gpt2` (learned positions, LayerNorm, GELU), or one that a pack
            adds: for `data=speech` `codec`, a Llama that says the codes of audio, several at each of its positions
            (arXiv:2306.05284).
        hidden, layers, heads, mlp: sizes; `mlp=0` means the family's usual multiple of `hidden`.
        max_positions: longest sequence in tokens.
        min_frames: of `family=codec`: least frames of a clip, which neither a sample nor training can end before.
        vocabulary: most tokens the trained tokenizer may have. A closed vocabulary that fits becomes one token a word
            with bytes for the rest; anything larger becomes byte-level BPE.
        lora: train an adapter instead of all parameters.
        tuned: algorithm (or `rollout`) → setting → value, where it is not written and the algorithm's own value for
            models of this size does not suit.
    """

    small_scale: ClassVar[bool] = True
    keyed_if_set: ClassVar[tuple[str, ...]] = (*Weights.keyed_if_set, "min_frames")
    family: str = "llama"
    hidden: Annotated[int, Ge(1)] = 64
    layers: Annotated[int, Ge(1)] = 2
    heads: Annotated[int, Ge(1)] = 4
    mlp: Annotated[int, Ge(0, hint="0 is the family's usual multiple of hidden")] = 0
    max_positions: Annotated[int, Ge(16)] = 256
    min_frames: Annotated[int, Ge(0, hint="0 lets a clip end after one frame")] = 0
    vocabulary: Annotated[int, Ge(300, hint="bytes and special tokens need 260")] = 4096
    lora: LoRA = field(default_factory=LoRA)
    tuned: Tuned = field(default_factory=dict)

    def contradictions(self, config: Config) -> list[str]:
        return [*self._family_problems(config), *self._length_problems(config), *self._adapter_problems(config)]

    def _family_problems(self, config: Config) -> list[str]:
        """A model whose responses are of another kind than those of the data."""
        if "model" not in config.algorithm.uses:
            return []
        data = registry.kind_of("data", config.data)
        own = families.families().get(self.family)
        if own is not None and own.responses not in config.data.capabilities:
            return [f"model.family={self.family} says {own.says}; data={data} is text"]
        for name, family in families.families().items():
            if family is not own and family.responses in config.data.capabilities:
                return [f"data={data} has {family.says}, one token each, for a model of codes; use model={name}"]
        return []

    def _length_problems(self, config: Config) -> list[str]:
        """Rows and episodes that are longer than the model's positions."""
        lengths = {"algorithm.max_length": getattr(config.algorithm, "max_length", None) or 0}
        if "rollout" in config.algorithm.uses:
            rollout, turns = config.rollout, config.data.max_turns
            setting = "max_new_tokens" if turns == 1 else "max_episode_tokens"
            name = f"rollout.max_prompt_tokens + rollout.{setting}"
            lengths[name] = rollout.max_prompt_tokens + rollout.most_tokens(turns)
        return [
            f"{name}={tokens} does not fit model.max_positions={self.max_positions}; lower it or raise "
            "model.max_positions"
            for name, tokens in lengths.items()
            if tokens > self.max_positions
        ]

    def _adapter_problems(self, config: Config) -> list[str]:
        """An adapter on a model that is random."""
        has_no_policy = "policy" in config.algorithm.optional_needs and not config.needs.get("policy")
        if not (self.lora.rank and config.algorithm.makes_model and has_no_policy):
            return []
        return [
            f"model.lora.rank={self.lora.rank} trains an adapter on a model that is there already, and a new one is "
            "random: name one in needs.policy, or train all of it with model.lora.rank=0 (in a stage before this "
            "run's: stages.RECIPE.model.lora.rank=0)"
        ]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.heads < 1 or self.hidden % self.heads == 0,
                f"hidden={self.hidden} is not a multiple of heads={self.heads}",
            ),
            schema.only_known("family", (self.family,), families.names()),
            *(
                (
                    not getattr(self, setting) or self.family == name,
                    f"{setting}={getattr(self, setting)} is read by family={name}",
                )
                for name, family in families.families().items()
                for setting in family.reads
            ),
        )


@register("model", "hf")
@dataclass(frozen=True)
class HuggingFace(Weights):
    """Any Hugging Face causal language model, from a hub id or a local folder (safetensors only, no remote code).

    Args:
        path: hub id or folder.
        revision: hub revision; a commit hash makes a run reproducible.
        chat_template: format prompts with the tokenizer's chat template instead of the plain Human/Assistant
            transcript. null: when the tokenizer has one.
        attention: Hugging Face's attention implementation. `auto` is `sdpa` (fused) where the model can have it, else
            `eager`: Gemma 2 caps its attention scores, which no fused kernel of PyTorch does.
        lora: train an adapter instead of all parameters.
        tuned: algorithm (or `rollout`) → setting → value, where it is not written and the algorithm's own value for
            models of this size does not suit.
    """

    small_scale: ClassVar[bool] = False
    path: Annotated[str, NotEmpty(hint="write model.path=FOLDER or a hub id such as model.path=gpt2")] = ""
    revision: str | None = None
    chat_template: bool | None = None
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    lora: LoRA = field(default_factory=LoRA)
    tuned: Tuned = field(default_factory=dict)

    def contradictions(self, config: Config) -> list[str]:
        is_folder = self.path.startswith(("/", "./", "../", "~"))
        if not is_folder or Path(self.path).expanduser().is_dir():
            return []
        return [f"model.path={self.path}: there is no such folder; write one, or a hub id such as gpt2"]
