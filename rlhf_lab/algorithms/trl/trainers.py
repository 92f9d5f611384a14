"""TRL's trainers with rlhf_lab's batches, schedule and prompts; everything else is TRL's. Only engine=trl imports this.

Overridden methods: `get_train_dataloader` and `create_scheduler`, which transformers documents for this purpose, and
two methods of TRL 1.16.0 without a public counterpart. These are `_prepare_dataset`, because rows are already
tokenised, and `_tokenize_prompts`.
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
    """A batch sampler: row indices of every forward pass, in order."""

    batch_size, drop_last, sampler = None, False, None  # accelerate reads these attributes of every batch sampler

    def __init__(self, batches: list[list[int]]):
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class LabSchedule:
    """A trainer whose learning rate follows `training.optim.lr_scale`.

    Attributes:
        lab: settings of the algorithm; must be set before `train`.
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
        # the overridden method of transformers sets this flag too
        self._created_lr_scheduler = True
        return self.lr_scheduler


class OnCorpus(LabSchedule):
    """A trainer on rlhf_lab's batches of tokenised rows, in their order.

    Attributes:
        batches: batches of all steps; must be set before `train`.
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
    """A trainer that samples responses to prompts, which rlhf_lab tokenises.

    Attributes:
        encode: text of a prompt → its token ids; must be set before `train`.
    """

    encode: Callable[[str], list[int]]

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.encode(text) for text in prompts], None, {}


class SFTTrainer(OnCorpus, trl.SFTTrainer):
    """TRL's SFT trainer on rlhf_lab's batches."""


class RewardTrainer(OnCorpus, trl.RewardTrainer):
    """TRL's reward trainer on rlhf_lab's batches."""


class DPOTrainer(OnCorpus, trl.DPOTrainer):
    """TRL's DPO trainer on rlhf_lab's batches."""


class KTOTrainer(OnCorpus, trl.KTOTrainer):
    """TRL's KTO trainer on rlhf_lab's batches, which include the mismatched rows of the KL estimate."""


class GRPOTrainer(OnPrompts, trl.GRPOTrainer):
    """TRL's GRPO trainer on rlhf_lab's prompts."""


class RLOOTrainer(OnPrompts, trl.RLOOTrainer):
    """TRL's RLOO trainer on rlhf_lab's prompts.

    Its loss is summed over the tokens of a response. Division by the maximum length makes it `aggregation=constant`.
    """

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        return loss / self.max_completion_length
