"""Reward from a Bradley–Terry reward model or an ensemble of them: text in, standardised scores out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import write_text
from rlhf_lab.core.types import FloatArray, RewardBatch
from rlhf_lab.data.transcript import CONTEXTS
from rlhf_lab.models.build import UNBOUNDED_LENGTH, load_encoder, load_reward_model, reward_outputs
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.model_files import positions, rope_limit
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.passes import over_rows
from rlhf_lab.models.reward_ensemble import averaged, same_shape
from rlhf_lab.rewards.learned.ensemble import combine_members, spread
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.training.run import Run

SCALE_FILE = "reward_scale.json"
"""Score scale of a model, stored next to its weights."""
AVERAGE_FILE = "reward_scale_average.json"
"""Score scale of the model whose weights are the mean of the members' weights."""
MEMBERS = "members"
"""Subdirectory with an ensemble's members except the first, which is the model directory itself."""


@dataclass
class ScoreScale:
    """Linear scale score → (score − mean)/sd, so that 0 and 1 mean the same for every reward model.

    Attributes:
        mean, sd: mean and standard deviation of the raw scores of `n` responses of the policy from which the model was
            trained.
        n: number of these responses; mean, sd and n are 0, 1 and 0 if unknown.
        max_length: tokens per row in training. `load_scorer` replaces it by the model's positions if it is unknown.
        attributes: names of the head's outputs for a model with several outputs; empty for a scalar model. They are
            attributes of a rubric, or a score and its length head.
        weights: weight of each attribute in the raw score.
        context: part of a prompt that the model was trained to read, a key of `CONTEXTS`.
        logit: True if differences of raw scores are log-odds of a preference, as in Bradley–Terry training.
    """

    mean: float = 0.0
    sd: float = 1.0
    n: int = 0
    max_length: int = 512
    attributes: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    context: str = "conversation"
    logit: bool = True

    @classmethod
    def read(cls, directory: str | Path, name: str = SCALE_FILE) -> ScoreScale:
        """Read the scale of a model directory; return the default scale if there is none."""
        path = Path(directory) / name
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, directory: Path, name: str = SCALE_FILE) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        write_text(directory / name, json.dumps(asdict(self), indent=1))

    def outputs(self) -> int:
        return len(self.weights) or 1

    @property
    def is_rubric(self) -> bool:
        """True if the outputs are the attributes of a rubric, and not a score and its length head."""
        return bool(self.attributes) and not self.logit


@dataclass(eq=False)
class Scorer:
    model: Any
    encoder: Encoder
    scale: ScoreScale
    device: str
    batch_tokens: int

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Return standardised scores, (N,)."""
        return self.standardised(self.outputs(prompts, responses))

    def raw(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Return unstandardised scores, (N,): the head's only output, or the weighted sum of its attributes."""
        return self.weighted(self.outputs(prompts, responses))

    def weighted(self, outputs_NA: FloatArray) -> FloatArray:
        """Convert outputs of the head (N, attributes) to raw scores, (N,)."""
        return outputs_NA @ np.array(self.scale.weights or (1.0,))

    def standardised(self, outputs_NA: FloatArray) -> FloatArray:
        """Convert outputs of the head (N, attributes) to standardised scores, (N,)."""
        return (self.weighted(outputs_NA) - self.scale.mean) / self.scale.sd

    def outputs(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Return the head's outputs for each response, (N, attributes); (N, 1) for a scalar model."""
        return model_outputs([self], self.rows(prompts, responses))[0]

    def rows(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Row]:
        """Return token rows of the responses, each after the part of its prompt that the model was trained to read."""
        context_of = CONTEXTS[self.scale.context]
        return [
            self.encoder.row(context_of(prompt), response, self.scale.max_length)
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def reads_like(self, other: Scorer) -> bool:
        """Return True if this and the other scorer read the same token rows for a text, on the same device."""
        return (
            self.encoder is other.encoder
            and self.device == other.device
            and self.scale.max_length == other.scale.max_length
            and self.scale.context == other.scale.context
        )

    def fix_scale(self, prompts: Sequence[str], responses: Sequence[str]) -> Scorer:
        """Set the scale so that these responses have mean 0 and standard deviation 1."""
        raw_N = self.raw(prompts, responses)
        mean = float(raw_N.mean())
        sd = float(max(raw_N.std(), 1e-6))  # a constant model has sd 0
        self.scale = replace(self.scale, mean=mean, sd=sd, n=len(raw_N))
        return self


@torch.no_grad()
def model_outputs(scorers: Sequence[Scorer], rows: Sequence[Row]) -> list[FloatArray]:
    """Return the outputs of each scorer's head for the same rows, (N, attributes) each.

    The models run one after another on each batch.
    """
    first = scorers[0]
    models = [scorer.model for scorer in scorers]
    head_outputs = [torch.zeros(len(rows), scorer.scale.outputs(), dtype=torch.float64) for scorer in scorers]

    def compute(batch: TokenBatch) -> list[torch.Tensor]:
        # float64 on the CPU: later sums and differences must not depend on the dtype of the model
        return [reward_outputs(model, batch).double().cpu() for model in models]

    for index, outputs in over_rows(rows, compute, first.batch_tokens, first.device, title="reward model"):
        for output_NA, output_BA in zip(head_outputs, outputs, strict=True):
            output_NA[index] = output_BA
    return [output_NA.numpy() for output_NA in head_outputs]


def score_members(scorers: Sequence[Scorer], prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
    """Return standardised scores of each member, (K, N). Members that read the same rows have the text encoded once."""
    scores: dict[int, FloatArray] = {}
    unscored = list(range(len(scorers)))
    while unscored:
        first = scorers[unscored[0]]
        equal = [k for k in unscored if scorers[k].reads_like(first)]
        rows = first.rows(prompts, responses)
        outputs = model_outputs([scorers[k] for k in equal], rows)
        for k, outputs_NA in zip(equal, outputs, strict=True):
            scores[k] = scorers[k].standardised(outputs_NA)
        unscored = [k for k in unscored if k not in equal]
    return np.stack([scores[k] for k in range(len(scorers))])


class BTReward:
    """Reward from one Bradley–Terry reward model, or from an ensemble whose scores are combined into one."""

    collective = True

    def __init__(self, scorers: Sequence[Scorer], settings: BradleyTerry):
        self.scorers = list(scorers)
        self.settings = settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. For an ensemble, parts are each member's standardised score and their standard deviation."""
        scores_KN = score_members(self.scorers, prompts, responses)
        if len(scores_KN) == 1:
            return RewardBatch(scores_KN[0])
        settings = self.settings
        total_N = combine_members(
            scores_KN,
            settings.ensemble,
            penalty_weight=settings.penalty_weight,
            penalty=settings.penalty,
            ddof=settings.ddof,
        )
        parts = {f"member_{k}": scores_N for k, scores_N in enumerate(scores_KN)}
        return RewardBatch(total_N, {**parts, "disagreement": spread(scores_KN, "sd", settings.ddof)})


def member_folders(source: str) -> list[str]:
    """Return the directories of a reward model's members: the model itself, then those in `members/`."""
    members = Path(source) / MEMBERS
    if not members.is_dir():
        return [source]
    return [source, *(str(path) for path in sorted(members.iterdir()))]


def load_scorer(
    directory: str,
    model_settings: Any,
    device: str,
    batch_tokens: int,
    note: Callable[[str], None],
    base: OneBase | None = None,
) -> Scorer:
    """Load the reward model, or the member of an ensemble, in a directory. Arguments are those of `load_members`."""
    scale = _read_scale(directory, note)
    model = load_reward_model(directory, model_settings, outputs=scale.outputs(), device=device, base=base)
    encoder = load_encoder(directory, model_settings)
    if not (Path(directory) / SCALE_FILE).is_file():  # a model of another program
        scale = replace(scale, max_length=_longest_row(model))
        if encoder.chat:
            encoder.chat.end_turns_in_full()
    return Scorer(model, encoder, scale, device, batch_tokens)


def _longest_row(model: Any) -> int:
    """Return the maximum number of tokens that a model of another program reads: its positions."""
    config = model.config.get_text_config().to_dict()
    rope = rope_limit(config)
    limits = [positions(config), rope[1] if rope else None]
    return min((limit for limit in limits if limit is not None), default=UNBOUNDED_LENGTH)


def _read_scale(directory: str, note: Callable[[str], None]) -> ScoreScale:
    scale = ScoreScale.read(directory)
    if not scale.n:
        note(f"{directory} has no {SCALE_FILE}: its scores are used as they are")
    return scale


def load_members(
    source: str,
    model_settings: Any,
    device: str,
    batch_tokens: int,
    note: Callable[[str], None],
    base: OneBase | None = None,
) -> list[Scorer]:
    """Load the members of a reward model. A member with the same tokenizer as the first shares its encoder.

    Args:
        model_settings: settings of `model=…`: attention, revision and chat template.
        note: function called with a note about each model without a scale.
        base: see `load_reward_model`.
    """
    scorers: list[Scorer] = []
    for directory in member_folders(source):
        scorer = load_scorer(directory, model_settings, device, batch_tokens, note, base)
        if scorers and scorer.encoder.tokenizer.get_vocab() == scorers[0].encoder.tokenizer.get_vocab():
            scorer.encoder = scorers[0].encoder  # a text is then encoded once for both (`reads_like`)
        scorers.append(scorer)
    return scorers


def average_members(scorers: Sequence[Scorer], source: str) -> Scorer:
    """Return one scorer whose weights are the mean of the members' weights (WARM, arXiv:2401.12187).

    Raise ConfigError unless the members started from the same policy.
    """
    models = [scorer.model for scorer in scorers]
    # The mean of weights has its own scale, measured when the members were trained.
    scale = ScoreScale.read(source, AVERAGE_FILE)
    if not scale.n or not same_shape(models):
        raise ConfigError(
            f"reward.terms.bt.ensemble=warm needs members that started from one policy, and {source} has no "
            f"{AVERAGE_FILE}: its members started from different policies; use ensemble=mean"
        )
    first = scorers[0]
    return Scorer(averaged(models), first.encoder, scale, first.device, first.batch_tokens)


def build(settings: BradleyTerry, run: Run) -> BTReward:
    return load(settings, run.needs["reward"], run.config.model, run.device, run.note, run.base)


def load(
    settings: BradleyTerry,
    source: str,
    model_settings: Any,
    device: str,
    note: Callable[[str], None],
    base: OneBase | None = None,
) -> BTReward:
    """Load the reward model in a directory; see `load_members`. Raise ConfigError if `ensemble` does not fit it."""
    if settings.ensemble == "warm" and base:
        # Averaged weights belong to no member, so they cannot be an adapter on the base shared with the policy.
        note("reward.terms.bt.ensemble=warm: the mean of the members' weights is not an adapter on the policy's base")
        base = None
    scorers = load_members(source, model_settings, device, settings.batch_tokens, note, base)
    # With a single member only the mean is defined; the other values would silently do the same.
    if len(scorers) == 1 and settings.ensemble != "mean":
        raise ConfigError(
            f"reward.terms.bt.ensemble={settings.ensemble} needs a reward model with several members, and "
            f"{source} has one; train it with stages.reward_model.algorithm.members=3"
        )
    if settings.ensemble == "warm":
        return BTReward([average_members(scorers, source)], settings)
    return BTReward(scorers, settings)
