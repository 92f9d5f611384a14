"""TRL's trainers with the lab's batches, schedule and prompts; all else is TRL's. Imported with engine=trl alone.

Overridden are `get_train_dataloader` and `create_scheduler`, which transformers documents for that, and two methods of
TRL 1.16.0 without a public counterpart: `_prepare_dataset`, because rows come tokenised, and `_tokenize_prompts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import trl
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, Sampler

from rlhf_lab.training.optim import lr_scale
from rlhf_lab.training.settings import TrainingSettings


class Batches(Sampler[list[int]]):
    """Row indices of every forward pass, in order."""

    batch_size, drop_last, sampler = None, False, None  # accelerate reads them of every batch sampler

    def __init__(self, batches: list[list[int]]):
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class LabSchedule:
    """The learning rate follows `training.optim.lr_scale`.

    Attributes:
        lab: settings of the algorithm; set before `train`.
    """

    lab: TrainingSettings
    optimizer: Any
    lr_scheduler: Any

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        warmup, final = self.lab.warmup_fraction, self.lab.final_lr_fraction
        self.lr_scheduler = LambdaLR(
            optimizer or self.optimizer,
            lambda step: lr_scale(step, num_training_steps, warmup_fraction=warmup, final_fraction=final),
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler


class OnCorpus(LabSchedule):
    """Goes through the lab's batches, in their order, of rows that the lab has tokenised.

    Attributes:
        batches: set before `train`.
    """

    batches: Batches
    accelerator: Any
    train_dataset: Any
    data_collator: Any

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset

    def get_train_dataloader(self) -> DataLoader:
        loader = DataLoader(self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


class OnPrompts(LabSchedule):
    """Samples replies to prompts that the lab tokenises.

    Attributes:
        encode: text of a prompt → its token ids; set before `train`.
    """

    encode: Callable[[str], list[int]]

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.encode(text) for text in prompts], None, {}


class SFTTrainer(OnCorpus, trl.SFTTrainer):
    """TRL's, on the lab's batches."""


class RewardTrainer(OnCorpus, trl.RewardTrainer):
    """TRL's, on the lab's batches."""


class DPOTrainer(OnCorpus, trl.DPOTrainer):
    """TRL's, on the lab's batches."""


class KTOTrainer(OnCorpus, trl.KTOTrainer):
    """TRL's, on the lab's batches and mismatched rows."""


class GRPOTrainer(OnPrompts, trl.GRPOTrainer):
    """TRL's, on the lab's prompts."""


class RLOOTrainer(OnPrompts, trl.RLOOTrainer):
    """TRL's, on the lab's prompts. Its loss adds up a reply's tokens; divided by the longest reply it is `constant`."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return loss / self.max_completion_length
