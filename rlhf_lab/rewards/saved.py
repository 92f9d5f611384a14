"""A saved reward model for use in Python: `reward = load_reward(folder); reward(prompts, replies)`.

The numbers are those that the lab itself computes (`reward/bt` of evaluation.jsonl): the same text format, the same
truncation, the same scale.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlhf_lab.config import registry, schema
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import FloatArray, RewardBatch, TextReward
from rlhf_lab.data.transcript import as_prompt, render_prompt
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.rewards.learned import bt
from rlhf_lab.rewards.learned.process import JUDGE_FILE, OutcomeReward, ProcessReward, load_judge
from rlhf_lab.rewards.learned.rubric import RubricReward
from rlhf_lab.rewards.learned.settings import BradleyTerry, Process

Prompt = str | Sequence[Message]
LearnedReward = ProcessReward | OutcomeReward | RubricReward | bt.BTReward


class SavedReward:
    """Scores replies with a model of a run: a reward model, an ensemble, a rubric, or a process or outcome model."""

    def __init__(self, folder: Path, reward: TextReward):
        self.folder = folder
        self._reward = reward

    def __call__(self, prompts: Sequence[Prompt], replies: Sequence[str]) -> FloatArray:
        """Scores, (N,), float64; NaN for a reply that the model leaves unscored.

        Args:
            prompts: of each reply: plain text is one human turn, a transcript is taken as it is, and a list of
                {role, content} messages is rendered as one.
            replies: as many as prompts, without the space before and without EOS.
        """
        return self.score(prompts, replies).total_N

    def parts(self, prompts: Sequence[Prompt], replies: Sequence[str]) -> dict[str, FloatArray]:
        """What the score is made of, (N,) each: members of an ensemble, attributes of a rubric, aggregated steps."""
        return dict(self.score(prompts, replies).parts)

    def score(self, prompts: Sequence[Prompt], replies: Sequence[str]) -> RewardBatch:
        """Scores and parts of one pass. Raises DataError unless there is one reply for each prompt."""
        if isinstance(prompts, str) or isinstance(replies, str) or len(prompts) != len(replies):
            raise DataError("a reward takes two lists of the same length: reward([prompt, …], [reply, …])")
        if not replies:
            return RewardBatch(np.zeros(0))
        texts = [as_prompt(prompt) if isinstance(prompt, str) else render_prompt(prompt) for prompt in prompts]
        return self._reward(texts, list(replies))


def load_reward(folder: str | Path, *, device: str = "auto", batch_tokens: int = 16384, **settings: Any) -> SavedReward:
    """The reward model of a run, ready to score replies.

    Args:
        folder: a run directory of `reward_model`, `rubric_rm`, `prm` or another recipe that trains a reward, or its
            `model/`, also when that was copied elsewhere.
        device: `auto` is a GPU where there is one.
        batch_tokens: padded tokens per forward pass.
        settings: of the term, as below `reward.terms.bt` or `reward.terms.prm`: `ensemble="uwo"`, `aggregate="min"`.
    Raises:
        ArtifactError: the folder holds no reward model. ConfigError: a setting that the model does not have.
    """
    folder = Path(folder).expanduser()
    source = folder / "model" if (folder / "model").is_dir() else folder
    if not (source / JUDGE_FILE).is_file() and not (source / bt.SCALE_FILE).is_file():
        raise ArtifactError(
            f"{folder} holds no reward model of the lab: there is neither {bt.SCALE_FILE} nor {JUDGE_FILE} in it; "
            "write the directory of a run such as outputs/runs/reward_model-…, or the model/ in it"
        )
    reward = open_reward(str(source), ranks.device(device), warnings.warn, batch_tokens=batch_tokens, **settings)
    return SavedReward(folder, reward)


def open_reward(
    source: str, device: str, note: Callable[[str], None], *, batch_tokens: int = 16384, **settings: Any
) -> LearnedReward:
    """The reward that a model's own files say it is: what it was trained as, and on what model.

    Args:
        source: a model folder, of the lab or with a Hugging Face sequence classifier; or the hub id of one.
        note: called with a remark about a model without a score scale, whose scores are taken as they are.
        batch_tokens, settings: see `load_reward`.
    """
    model_settings = _model_settings(source)
    # The file beside the weights tells what the model is: a judge of steps, or a model with a score scale.
    if (Path(source) / JUDGE_FILE).is_file():
        judge = load_judge(source, model_settings, device, batch_tokens)
        if judge.trained_as.kind == "orm":
            _term_settings(None, settings)  # refuses any setting: the term has none
            return OutcomeReward(judge)
        return ProcessReward(judge, _term_settings(Process, settings))
    if bt.ScoreScale.read(source).attributes:
        _term_settings(None, settings)
        scorers = bt.load_members(source, model_settings, device, batch_tokens, note)
        return RubricReward(scorers[0])
    term = replace(_term_settings(BradleyTerry, settings), batch_tokens=batch_tokens)
    return bt.load(term, source, model_settings, device, note)


def _model_settings(source: str) -> Any:
    """The `model=…` of the run that the model belongs to; plain Hugging Face settings for one that was copied away, or
    that the lab did not train."""
    folder = Path(source)
    config_file = folder.parent / "config.yaml"
    is_ours = any((folder / name).is_file() for name in (JUDGE_FILE, bt.SCALE_FILE))
    values = None
    if is_ours and config_file.is_file():
        values = yaml.safe_load(config_file.read_text(encoding="utf-8")).get("model")
    if not values:
        return HuggingFace(path=source)
    problems: list[str] = []
    fields = {name: value for name, value in values.items() if name != "kind"}
    settings = schema.build(registry.settings_class("model", values["kind"]), fields, "model", problems)
    if problems:
        raise ConfigError([f"{config_file}: {problem}" for problem in problems])
    return settings


def _term_settings(cls: type[Any] | None, values: Mapping[str, Any]) -> Any:
    """Settings of a term. Raises ConfigError for one that does not exist, or any where the term has none."""
    problems: list[str] = []
    settings = None
    if cls is None:
        problems = [f"{name} is not a setting of this reward; it has none" for name in values]
    else:
        settings = schema.build(cls, values, "load_reward", problems)
    if problems:
        raise ConfigError(problems)
    return settings
