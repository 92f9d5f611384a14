"""Reward term on the acoustic features of a clip: standardised features, a small network, standardised score.

Files: `acoustic_reward.json` (names of the features, their means and standard deviations, the scale of the score) and
`acoustic_reward.safetensors` (the network).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.files import read_object, write_text
from rlhf_lab.core.types import TextReward
from rlhf_lab.models.model_files import reading_weights
from rlhf_lab.packs.speech.rewards.clips import features_of, is_silent, model_file, renderer_of, reward_of_sound
from rlhf_lab.packs.speech.rewards.settings import SILENT, AcousticModel
from rlhf_lab.packs.speech.sound.features import NAMES, fill_undefined
from rlhf_lab.training.run import Run

MODEL_FILE = "acoustic_reward.json"
WEIGHTS_FILE = "acoustic_reward.safetensors"


@dataclass(frozen=True)
class Standardiser:
    """Selection and standardisation of the features that a model uses.

    Attributes:
        names: names of the F features that are used.
        means_F, sds_F: mean and standard deviation of each feature on the clips of `fit`, in units of the feature.
    """

    names: tuple[str, ...]
    means_F: FloatArray
    sds_F: FloatArray

    @classmethod
    def fit(cls, features_N7: FloatArray, names: Sequence[str]) -> Standardiser:
        """Fit mean and standard deviation on these clips without the silent ones.

        Raises ConfigError if fewer than 2 are left.
        """
        columns = [NAMES.index(name) for name in names]
        measured_NF = fill_undefined(features_N7[~is_silent(features_N7)])[:, columns]
        if len(measured_NF) < 2:
            raise ConfigError(
                f"{len(measured_NF)} of {len(features_N7)} training clips have sound; standardising features needs 2 "
                "or more. Use other data"
            )
        sds_F = measured_NF.std(axis=0)
        # a constant feature carries no information; with a divisor of 1 it is 0 after standardisation
        return cls(tuple(names), measured_NF.mean(axis=0), np.where(sds_F > 1e-12, sds_F, 1.0))

    def __call__(self, features_N7: FloatArray) -> FloatArray:
        """Return the standardised features, (N, F)."""
        columns = [NAMES.index(name) for name in self.names]
        return (fill_undefined(features_N7)[:, columns] - self.means_F) / self.sds_F


@dataclass(frozen=True)
class FeatureModel:
    """A trained reward model on features.

    Attributes:
        standardiser: selects and standardises features.
        network: network from (N, F) to (N, 1), float64.
        mean, sd: mean and standard deviation of the network's outputs on training clips.
    """

    standardiser: Standardiser
    network: nn.Sequential
    mean: float = 0.0
    sd: float = 1.0

    @torch.no_grad()
    def outputs(self, features_N7: FloatArray) -> FloatArray:
        """Return the outputs of the network, (N,). Their differences are log-odds of a preference (Bradley-Terry)."""
        inputs_NF = torch.from_numpy(self.standardiser(features_N7))
        return np.asarray(self.network(inputs_NF).squeeze(-1).numpy(), dtype=np.float64)

    def __call__(self, features_N7: FloatArray, silent: float) -> FloatArray:
        """Return standardised scores, (N,); `silent` for clips without a sounding frame."""
        scores_N = (self.outputs(features_N7) - self.mean) / self.sd
        return np.where(is_silent(features_N7), silent, scores_N)

    def with_scale(self, features_N7: FloatArray) -> FeatureModel:
        """Return a model whose scores have mean 0 and standard deviation 1 on these clips, without silent ones."""
        outputs_N = self.outputs(features_N7[~is_silent(features_N7)])
        return replace(self, mean=float(outputs_N.mean()), sd=max(float(outputs_N.std()), 1e-9))

    def save(self, directory: Path, metadata: Mapping[str, Any]) -> None:
        """Write both files. The JSON file is written last, because `load` recognises a complete model by it.

        Args:
            metadata: additional entries of the JSON file, for information only.
        """
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in self.network.state_dict().items()}
        save_file(tensors, directory / WEIGHTS_FILE)
        entries = {
            "features": list(self.standardiser.names),
            "means": self.standardiser.means_F.tolist(),
            "sds": self.standardiser.sds_F.tolist(),
            "hidden": self.network[0].out_features if len(self.network) > 1 else 0,
            "score_mean": self.mean,
            "score_sd": self.sd,
            **metadata,
        }
        write_text(directory / MODEL_FILE, json.dumps(entries, indent=1))

    @classmethod
    def load(cls, source: str | Path, role: str) -> FeatureModel:
        """Read a model written by `save`. Raises ConfigError if the directory contains none.

        Args:
            role: role of the model in `needs`, for the error message.
        """
        file = model_file(source, MODEL_FILE, role, "algorithm=acoustic_reward, or the recipe tts_reward")
        with reading_weights(file.parent):
            entries = read_object(file)
            # the file may come from a version with other features
            unknown = [name for name in entries["features"] if name not in NAMES]
            if unknown:
                raise ArtifactError(f"{file} has unknown features {', '.join(unknown)}; expected {', '.join(NAMES)}")
            means_F, sds_F = np.array(entries["means"]), np.array(entries["sds"])
            standardiser = Standardiser(tuple(entries["features"]), means_F, sds_F)
            network = new_network(len(standardiser.names), entries["hidden"], seed=0)  # its weights are replaced
            network.load_state_dict(load_file(file.with_name(WEIGHTS_FILE)))
            return cls(standardiser, network, entries["score_mean"], entries["score_sd"])


def new_network(features: int, hidden: int, seed: int) -> nn.Sequential:
    """Create a network of `features` inputs, `hidden` tanh units and one output; linear for `hidden` 0.

    Weights are float64 and uniform in ±1/√inputs. tanh limits the reward that a policy can gain by pushing a feature
    beyond the range of the training clips.
    """
    sizes = [features, *([hidden] if hidden else []), 1]
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.Tanh()]
    network = nn.Sequential(*layers[:-1])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, nn.Linear):
                bound = 1 / math.sqrt(layer.in_features)
                fraction = torch.rand(layer.weight.shape, generator=generator, dtype=torch.float64)
                layer.weight.copy_((2 * fraction - 1) * bound)
                layer.bias.zero_()
    return network


def weighted_sum(standardiser: Standardiser, weights: Mapping[str, float]) -> FeatureModel:
    """Return a linear model: the sum of standardised features with the given weights."""
    network = new_network(len(standardiser.names), 0, seed=0)
    linear = network[0]
    assert isinstance(linear, nn.Linear)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[weights[name] for name in standardiser.names]], dtype=torch.float64))
        linear.bias.zero_()
    return FeatureModel(standardiser, network)


def build(settings: AcousticModel, run: Run) -> TextReward:
    renderer = renderer_of(run, "reward=acoustic_rm")
    model = FeatureModel.load(run.needs["acoustic_rm"], "acoustic_rm")
    return reward_of_sound(lambda responses: model(features_of(renderer, responses), settings.silent))


def from_folder(directory: Path, run: Run) -> TextReward:
    """Load the reward that `algorithm=acoustic_reward` wrote to a directory, for `reward=design`."""
    renderer = renderer_of(run, "reward=design")
    model = FeatureModel.load(directory, "design")
    return reward_of_sound(lambda responses: model(features_of(renderer, responses), SILENT))
