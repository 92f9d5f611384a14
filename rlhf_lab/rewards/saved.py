"""A saved reward model for use in Python: `reward = load_reward(directory); reward(prompts, responses)`.

The scores are identical to those that rlhf_lab itself computes (`reward/bt` of evaluation.jsonl): same text format,
same truncation, same scale.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.config import registry, schema
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import FloatArray, RewardBatch, TextReward
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.data.transcript import as_prompt, render_prompt
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.rewards.learned import bt
from rlhf_lab.rewards.learned.process import JUDGE_FILE, OutcomeReward, ProcessReward, load_judge
from rlhf_lab.rewards.learned.rubric import RubricReward
from rlhf_lab.rewards.learned.settings import BradleyTerry, Process

Prompt = str | Sequence[Message]
LearnedReward = ProcessReward | OutcomeReward | RubricReward | bt.BTReward


class SavedReward:
    """Reward from a saved model of a run: a reward model, an ensemble, a rubric, or a process or outcome model."""

    def __init__(self, directory: Path, reward: TextReward):
        self.directory = directory
        self._reward = reward

    def __call__(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> FloatArray:
        """Return scores, (N,), float64; NaN for a response that the model leaves unscored.

        Args:
            prompts: one prompt per response. Plain text is one human turn, a transcript is used as it is, and a list
                of {role, content} messages is rendered as a transcript.
            responses: one response per prompt, without leading space and without EOS.
        """
        return self.score(prompts, responses).total_N

    def parts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Return the parts of the score, (N,) each: ensemble members, rubric attributes or aggregated steps."""
        return dict(self.score(prompts, responses).parts)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> RewardBatch:
        """Return scores and parts of one pass. Raise DataError unless there is one response for each prompt."""
        # A single string is also a sequence, of characters, so it would be scored letter by letter.
        if isinstance(prompts, str) or isinstance(responses, str) or len(prompts) != len(responses):
            raise DataError("a reward needs two lists of the same length: reward([prompt, …], [response, …])")
        if not responses:
            return RewardBatch(np.zeros(0))
        texts = [as_prompt(prompt) if isinstance(prompt, str) else render_prompt(prompt) for prompt in prompts]
        return self._reward(texts, list(responses))


def load_reward(
    directory: str | Path, *, device: str = "auto", batch_tokens: int = 16384, **settings: Any
) -> SavedReward:
    """Load the reward model of a run.

    Args:
        directory: run directory of `reward_model`, `rubric_rm`, `prm` or another recipe that trains a reward, or its
            `model/`, even if that was copied elsewhere.
        device: device name; `auto` is a GPU if there is one.
        batch_tokens: padded tokens per forward pass.
        settings: settings of the term, as in `reward.terms.bt` or `reward.terms.prm`: `ensemble="uwo"`,
            `aggregate="min"`.

    Raises:
        ArtifactError: the directory contains no reward model.
        ConfigError: the model does not have such a setting.
    """
    directory = Path(directory).expanduser()
    # A run directory contains the model in model/; a copied model is the directory itself.
    source = directory / "model" if (directory / "model").is_dir() else directory
    if not (source / JUDGE_FILE).is_file() and not (source / bt.SCALE_FILE).is_file():
        raise ArtifactError(
            f"{directory} contains no reward model of rlhf_lab: it has neither {bt.SCALE_FILE} nor {JUDGE_FILE}; "
            "name the directory of a run such as outputs/runs/reward_model-…, or the model/ in it"
        )
    reward = open_reward(str(source), ranks.device(device), warnings.warn, batch_tokens=batch_tokens, **settings)
    return SavedReward(directory, reward)


def open_reward(
    source: str, device: str, note: Callable[[str], None], *, batch_tokens: int = 16384, **settings: Any
) -> LearnedReward:
    """Load the reward that a model's own files describe.

    Args:
        source: model directory, written by rlhf_lab or containing a Hugging Face sequence classifier; or its hub id.
        note: function called with a note about a model without a score scale, whose scores are not rescaled.
        batch_tokens, settings: see `load_reward`.
    """
    model_settings = _model_settings(source)
    # The file next to the weights determines the kind of model: a judge of steps, or a model with a score scale.
    if (Path(source) / JUDGE_FILE).is_file():
        judge = load_judge(source, model_settings, device, batch_tokens)
        if judge.trained_as.kind == "orm":
            _term_settings(None, settings)  # rejects any setting, because this term has none
            return OutcomeReward(judge)
        return ProcessReward(judge, _term_settings(Process, settings))
    if bt.ScoreScale.read(source).is_rubric:
        _term_settings(None, settings)
        scorers = bt.load_members(source, model_settings, device, batch_tokens, note)
        return RubricReward(scorers[0])
    term = replace(_term_settings(BradleyTerry, settings), batch_tokens=batch_tokens)
    return bt.load(term, source, model_settings, device, note)


def _model_settings(source: str) -> Any:
    """Return the `model=…` settings of the run that a model belongs to.

    A model that was copied elsewhere, or that rlhf_lab did not train, gets the default Hugging Face settings.
    """
    directory = Path(source)
    config_file = directory.parent / "config.yaml"
    is_ours = any((directory / name).is_file() for name in (JUDGE_FILE, bt.SCALE_FILE))
    values = None
    # Only a model of rlhf_lab has a config.yaml of its run next to it; any other config.yaml is unrelated.
    if is_ours and config_file.is_file():
        values = read_mapping(config_file, "the settings of a run").get("model")
    if not values:
        return HuggingFace(path=source)
    problems: list[str] = []
    fields = {name: value for name, value in values.items() if name != "kind"}
    settings = schema.build(registry.settings_class("model", values["kind"]), fields, "model", problems)
    if problems:
        raise ConfigError([f"{config_file}: {problem}" for problem in problems])
    return settings


def _term_settings(cls: type[Any] | None, values: Mapping[str, Any]) -> Any:
    """Return the settings of a term. Raise ConfigError for an unknown setting, or for any if the term has none."""
    problems: list[str] = []
    settings = None
    if cls is None:
        problems = [f"{name} is not a setting of this reward; it has none" for name in values]
    else:
        settings = schema.build(cls, values, "load_reward", problems)
    if problems:
        raise ConfigError(problems)
    return settings
