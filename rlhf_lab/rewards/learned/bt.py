"""The learned reward model, or an ensemble of them, as a reward: text in, standardised scores out."""

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
from rlhf_lab.models.build import load_encoder, load_reward_model, reward_outputs
from rlhf_lab.models.encoding import Encoder, Row, TokenBatch
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.passes import over_rows
from rlhf_lab.models.reward_ensemble import StackedModels, averaged, same_shape, stackable
from rlhf_lab.rewards.learned.ensemble import combine_members, spread
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.training.run import Run

SCALE_FILE = "reward_scale.json"
AVERAGE_FILE = "reward_scale_average.json"
"""Scale of the model whose weights are the mean of the members'."""
MEMBERS = "members"
"""Subfolder with an ensemble's members after the first, which is the model folder itself. A member without a model of
its own is a head on the first one's model."""


@dataclass
class ScoreScale:
    """score → (score − mean)/sd, so that 0 and 1 mean the same for every reward model.

    Attributes:
        attributes: names of the head's outputs, for a model with several; empty for a scalar one.
        weights: of the attributes in the raw score; as many as attributes.
        mean, sd: of the raw scores of `n` replies of the policy the model was trained from; 0, 1, 0 when unknown.
        max_length: tokens per row the model was trained with.
        context: what it was trained to read of a prompt, a key of `CONTEXTS`.
        logit: whether differences of raw scores are log-odds of a preference, as Bradley-Terry training makes them.
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
    def read(cls, folder: str | Path, name: str = SCALE_FILE) -> ScoreScale:
        path = Path(folder) / name
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, folder: Path, name: str = SCALE_FILE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, json.dumps(asdict(self), indent=1))

    def outputs(self) -> int:
        """Numbers that the head gives per reply."""
        return len(self.weights) or 1


class Scorer:
    """One reward model and its scale."""

    def __init__(self, model: Any, encoder: Encoder, scale: ScoreScale, device: str, batch_tokens: int):
        self.model = model
        self.encoder = encoder
        self.scale = scale
        self.device = device
        self.batch_tokens = batch_tokens

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Standardised scores, (N,)."""
        return self.standardised(self.outputs(prompts, responses))

    def raw(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """Unstandardised scores, (N,): the head's one output, or the weighted sum of its attributes."""
        return self.weighted(self.outputs(prompts, responses))

    def weighted(self, outputs_NA: FloatArray) -> FloatArray:
        """Outputs of the head → raw scores, (N,)."""
        return outputs_NA @ np.array(self.scale.weights or (1.0,))

    def standardised(self, outputs_NA: FloatArray) -> FloatArray:
        """Outputs of the head → standardised scores, (N,)."""
        return (self.weighted(outputs_NA) - self.scale.mean) / self.scale.sd

    def outputs(self, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
        """The head's outputs for each reply, (N, attributes); (N, 1) for a scalar model."""
        return model_outputs([self], self.rows(prompts, responses))[0]

    def rows(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Row]:
        """Token rows of the replies, each after as much of its prompt as the model was trained to read."""
        context_of = CONTEXTS[self.scale.context]
        return [
            self.encoder.row(context_of(prompt), response, self.scale.max_length)
            for prompt, response in zip(prompts, responses, strict=True)
        ]

    def reads_like(self, other: Scorer) -> bool:
        """Whether both read the same rows of the same text, on the same device."""
        return (
            self.encoder is other.encoder
            and self.device == other.device
            and self.scale.max_length == other.scale.max_length
            and self.scale.context == other.scale.context
        )

    def fix_scale(self, prompts: Sequence[str], responses: Sequence[str]) -> Scorer:
        """Give these replies mean 0 and standard deviation 1."""
        raw_N = self.raw(prompts, responses)
        mean = float(raw_N.mean())
        sd = float(max(raw_N.std(), 1e-6))  # a constant model would divide by 0
        self.scale = replace(self.scale, mean=mean, sd=sd, n=len(raw_N))
        return self


@torch.no_grad()
def model_outputs(
    scorers: Sequence[Scorer], rows: Sequence[Row], stacked: StackedModels | None = None
) -> list[FloatArray]:
    """Outputs of each scorer's head for the same rows, (N, attributes) each.

    Heads of one model share its pass. Different models run one after another on each batch, or all in the one pass of
    `stacked`.
    """
    first = scorers[0]
    models = list({id(scorer.model): scorer.model for scorer in scorers}.values())  # each once, in order
    head_outputs = [torch.zeros(len(rows), scorer.scale.outputs(), dtype=torch.float64) for scorer in scorers]

    def compute(batch: TokenBatch) -> list[torch.Tensor]:
        outputs = stacked.outputs(batch) if stacked else [reward_outputs(model, batch) for model in models]
        return [output_BA.double().cpu() for output_BA in outputs]

    for index, outputs in over_rows(rows, compute, first.batch_tokens, first.device):
        by_model = {id(model): output_BA for model, output_BA in zip(models, outputs, strict=True)}
        for output_NA, scorer in zip(head_outputs, scorers, strict=True):
            output_NA[index] = by_model[id(scorer.model)]
    return [output_NA.numpy() for output_NA in head_outputs]


def stack(scorers: Sequence[Scorer]) -> StackedModels | None:
    """The members as one batched pass, or None where it is not faster or not possible."""
    models = [scorer.model for scorer in scorers]
    on_gpu = scorers[0].device.startswith("cuda")  # on a CPU thread a stacked pass is no faster
    separate_models = len({id(model) for model in models}) == len(models)  # heads of one model share its pass already
    same_rows = all(scorer.reads_like(scorers[0]) for scorer in scorers)
    if on_gpu and separate_models and same_rows and stackable(models):
        return StackedModels(models)
    return None


def score_members(
    scorers: Sequence[Scorer], prompts: Sequence[str], responses: Sequence[str], stacked: StackedModels | None = None
) -> FloatArray:
    """Standardised scores of each member, (K, N); members that read alike have the text encoded once."""
    scores: dict[int, FloatArray] = {}
    unscored = list(range(len(scorers)))
    while unscored:
        first = scorers[unscored[0]]
        alike = [k for k in unscored if scorers[k].reads_like(first)]
        rows = first.rows(prompts, responses)
        outputs = model_outputs([scorers[k] for k in alike], rows, stacked)
        for k, outputs_NA in zip(alike, outputs, strict=True):
            scores[k] = scorers[k].standardised(outputs_NA)
        unscored = [k for k in unscored if k not in alike]
    return np.stack([scores[k] for k in range(len(scorers))])


class BTReward:
    """Scores replies with one Bradley-Terry reward model, or with several that become one score.

    Args:
        stacked: the scorers' models in one pass; see `stack`.
    """

    collective = True

    def __init__(self, scorers: Sequence[Scorer], settings: BradleyTerry, stacked: StackedModels | None = None):
        self.scorers = list(scorers)
        self.settings = settings
        self.stacked = stacked

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Parts, for an ensemble: each member's standardised score and their standard deviation."""
        scores_KN = score_members(self.scorers, prompts, responses, self.stacked)
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
    """The folders of a reward model's members: the model itself, then those in `members/`."""
    members = Path(source) / MEMBERS
    if not members.is_dir():
        return [source]
    return [source, *(str(path) for path in sorted(members.iterdir()))]


def load_members(
    source: str,
    model_settings: Any,
    device: str,
    batch_tokens: int,
    note: Callable[[str], None],
    base: OneBase | None = None,
) -> list[Scorer]:
    """The members of a reward model. A member with the tokenizer of the first shares its encoder.

    Args:
        model_settings: of `model=…`: attention, revision and chat template.
        note: called with a remark about each model without a scale.
        base: as in `load_reward_model`.
    """
    scorers: list[Scorer] = []
    for folder in member_folders(source):
        scale = ScoreScale.read(folder)
        if not scale.n:
            note(f"{folder} has no {SCALE_FILE}: its scores are used as they are")
        has_model = (Path(folder) / "config.json").is_file()
        if scorers and not has_model:  # a further head on the first member's model
            model, encoder = scorers[0].model, scorers[0].encoder
        else:
            model = load_reward_model(folder, model_settings, outputs=scale.outputs(), device=device, base=base)
            encoder = load_encoder(folder, model_settings)
            if scorers and encoder.tokenizer.get_vocab() == scorers[0].encoder.tokenizer.get_vocab():
                encoder = scorers[0].encoder  # members with one encoder have a text encoded once (`reads_like`)
        scorers.append(Scorer(model, encoder, scale, device, batch_tokens))
    return scorers


def average_members(scorers: Sequence[Scorer], source: str) -> Scorer:
    """One scorer whose weights are the mean of the members' (WARM). Raises ConfigError unless they started alike."""
    models = [scorer.model for scorer in scorers]
    scale = ScoreScale.read(source, AVERAGE_FILE)
    if not scale.n or not same_shape(models):
        raise ConfigError(
            f"reward.terms.bt.ensemble=warm averages members that started from one policy, each a model of its own, "
            f"and {source} has no {AVERAGE_FILE}: its members share a trunk or started from different policies; "
            "use ensemble=mean"
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
    """The reward model in a folder; see `load_members`. Raises ConfigError when `ensemble` does not fit its members."""
    if settings.ensemble == "warm" and base:
        note("reward.terms.bt.ensemble=warm: the mean of the members' weights is no adapter on the policy's base")
        base = None
    scorers = load_members(source, model_settings, device, settings.batch_tokens, note, base)
    if len(scorers) == 1 and settings.ensemble != "mean":
        raise ConfigError(
            f"reward.terms.bt.ensemble={settings.ensemble} needs a reward model with several members, and "
            f"{source} has one; train it with stages.reward_model.algorithm.members=3"
        )
    if settings.ensemble == "warm":
        return BTReward([average_members(scorers, source)], settings)
    return BTReward(scorers, settings, stack(scorers))
