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
"""Values of settings that suit a model: algorithm (or `rollout`) → setting → value."""


@dataclass(frozen=True)
class LoRA(CheckedSettings):
    """Train an adapter on a frozen model instead of all parameters (arXiv:2106.09685). Needs `rlhf_lab[lora]`.

    There is no dropout, so a log-probability is the same at every call.

    Args:
        rank: rank of the adapter; 0 trains all parameters, and the other settings of this section have no effect.
        alpha: scale of the adapter; its product is multiplied by alpha/rank. With the same alpha and learning rate, all
            ranks move the policy equally far (measured: KL 0.19, 0.17, 0.18 at ranks 4, 8, 16; with 2·rank 0.07, 0.17,
            0.40).
        targets: names of adapted layers, matched at their end, e.g. [q_proj,v_proj]; null is every linear layer of the
            blocks. The embeddings and the output head have no adapter.
        rslora: multiply the product by alpha/√rank instead (arXiv:2312.03732).
        lr_multiple: factor of the learning rate for an adapter under AdamW (https://thinkingmachines.ai/blog/lora). It
            applies to an algorithm's default `lr` and to the one in `tuned`, which are for all parameters, but not to
            an `algorithm.lr` that you set. Muon's rates stay, because its steps have a fixed size.
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
    """Storage (float32, bfloat16 or nf4) of the weights of single roles; null means the value of `model.weights`.

    Args:
        policy: storage of policies that are sampled or measured, and of the base of an adapter.
        reference: storage of the reference of DPO and of a KL penalty.
        reward: storage of reward models.
    """

    policy: Stored | None = None
    reference: Stored | None = None
    reward: Stored | None = None


@dataclass(frozen=True)
class Weights(Section):
    """Storage of weights that are not fully trained; see `models/weights.py`.

    Args:
        weights: storage of reference and reward models, of policies that are sampled or measured, and of the base of an
            adapter. `bfloat16` needs half the memory and `nf4` (needs `rlhf_lab[quantized]`) about a seventh of it.
            All passes of such a model are then in bfloat16. Trained weights are always float32.
        weights_of: storage for single roles, e.g. {reward: bfloat16}.
    """

    inherited: ClassVar[bool] = True
    keyed_if_set: ClassVar[tuple[str, ...]] = ("weights", "weights_of")
    weights: Stored = "float32"
    weights_of: RoleWeights = field(default_factory=RoleWeights)

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("model", self)] if "model" in config.algorithm.inputs.sections else []

    def stored(self, role: WeightsOf) -> Stored:
        """Return how the weights of a role are stored: float32, bfloat16 or nf4."""
        return getattr(self.weights_of, role) or self.weights


@register("model", "scratch")
@dataclass(frozen=True)
class Scratch(Weights):
    """A small transformer with these sizes, and a tokenizer trained on the data. Nothing is downloaded.

    Args:
        family: architecture: `llama` (rotary, RMSNorm, gated MLP), `gpt2` (learned positions, LayerNorm, GELU), or one
            that a pack adds. For `data=speech` it is `codec`, a Llama that generates audio codes, several at each
            position (arXiv:2306.05284).
        hidden, layers, heads, mlp: sizes; `mlp=0` is the family's usual multiple of `hidden`.
        max_positions: maximum number of tokens of a sequence.
        min_frames: minimum number of frames of a clip (`family=codec` only); neither sampling nor training can end a
            clip earlier.
        vocabulary: maximum number of tokens of the trained tokenizer. A closed vocabulary that fits gets one token per
            word, with bytes for all other words; anything larger gets byte-level BPE.
        lora: settings of an adapter, which is trained instead of all parameters.
        tuned: algorithm (or `rollout`) → setting → value. It replaces the algorithm's default value, which does not
            suit models of this size, unless you set the setting.
    """

    small_scale: ClassVar[bool] = True
    keyed_if_set: ClassVar[tuple[str, ...]] = ("min_frames",)
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
        return [
            *self._family_problems(config),
            *self._length_problems(config),
            *self._adapter_problems(config),
        ]

    def _family_problems(self, config: Config) -> list[str]:
        if "model" not in config.algorithm.inputs.sections:
            return []
        data = registry.kind_of("data", config.data)
        own = families.families().get(self.family)
        if own is not None and own.responses not in config.data.capabilities:
            return [f"model.family={self.family} generates {own.says}, but data={data} is text; use another family"]
        for name, family in families.families().items():
            if family is not own and family.responses in config.data.capabilities:
                kind = f"{family.says}, one token each, which need a model of codes"
                return [f"data={data} has {kind}; set model={name}"]
        return []

    def _length_problems(self, config: Config) -> list[str]:
        # every setting that determines the length of a row, with its value
        lengths = {"algorithm.max_length": getattr(config.algorithm, "max_length", None) or 0}
        if "rollout" in config.algorithm.inputs.sections:
            rollout, turns = config.rollout, config.data.max_turns
            # an episode of several turns is limited as a whole
            setting = "max_new_tokens" if turns == 1 else "max_episode_tokens"
            name = f"rollout.max_prompt_tokens + rollout.{setting}"
            lengths[name] = rollout.max_prompt_tokens + rollout.max_tokens_left(turns)
        return [
            f"{name}={tokens} exceeds model.max_positions={self.max_positions}; lower it or raise model.max_positions"
            for name, tokens in lengths.items()
            if tokens > self.max_positions
        ]

    def _adapter_problems(self, config: Config) -> list[str]:
        has_no_policy = "policy" in config.algorithm.inputs.optional and not config.needs.get("policy")
        if not (self.lora.rank and config.algorithm.outputs.model and has_no_policy):
            return []
        return [
            f"model.lora.rank={self.lora.rank} trains an adapter on an existing model, but the new model is random; "
            "name a model in needs.policy, or train all parameters with model.lora.rank=0 (for a stage before this "
            "run: stages.RECIPE.model.lora.rank=0)"
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
                    f"{setting}={getattr(self, setting)} is used only with family={name}",
                )
                for name, family in families.families().items()
                for setting in family.reads
            ),
        )


@register("model", "hf")
@dataclass(frozen=True)
class HuggingFace(Weights):
    """Any Hugging Face causal language model, from a hub id or a local directory (safetensors only, no remote code).

    Args:
        path: hub id or directory.
        revision: hub revision; a commit hash makes a run reproducible.
        chat_template: format prompts with the tokenizer's chat template instead of the Human/Assistant transcript. null
            uses the template if the tokenizer has one.
        attention: Hugging Face's attention implementation. `auto` is `sdpa` (fused) if the model supports it, else
            `eager`: Gemma 2 caps its attention scores, which no fused kernel of PyTorch does.
        lora: settings of an adapter, which is trained instead of all parameters.
        tuned: algorithm (or `rollout`) → setting → value. It replaces the algorithm's default value, which does not
            suit models of this size, unless you set the setting.
    """

    small_scale: ClassVar[bool] = False
    path: Annotated[str, NotEmpty(hint="set model.path=DIR or a hub id such as model.path=gpt2")] = ""
    revision: str | None = None
    chat_template: bool | None = None
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    lora: LoRA = field(default_factory=LoRA)
    tuned: Tuned = field(default_factory=dict)

    def contradictions(self, config: Config) -> list[str]:
        is_dir = self.path.startswith(("/", "./", "../", "~"))
        if not is_dir or Path(self.path).expanduser().is_dir():
            return []
        return [f"model.path={self.path}: there is no such directory; set a directory, or a hub id such as gpt2"]
