"""TRL's trainers with rlhf_lab's batches, schedule and prompts; everything else is TRL's. Only engine=trl imports this.

Overridden methods: `get_train_dataloader` and `create_scheduler`, which transformers documents for this purpose, and
two methods of TRL 1.16.0 without a public counterpart. These are `_prepare_dataset`, because rows are already
tokenised, and `_tokenize_prompts`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trl
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, Sampler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_lab.algorithms.trl import options
from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.progress import Ticker
from rlhf_lab.training import checkpoint
from rlhf_lab.training.loop import Algorithm
from rlhf_lab.training.optim import lr_scale
from rlhf_lab.training.run import Run
from rlhf_lab.training.settings import TrainingSettings


class LabCallback(TrainerCallback):
    """A callback that writes logs to metrics.jsonl, evaluates between steps, saves checkpoints and can stop the run.

    Args:
        stop: event that ends the run, saved, after the current step.
    """

    def __init__(self, algorithm: Algorithm, run: Run, ticker: Ticker, stop: threading.Event):
        self.algorithm, self.run, self.ticker, self.stop = algorithm, run, ticker, stop
        self.lab_names = options.metrics(run.config)  # TRL's name of a metric → the lab's
        self.note = ""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        trl_metrics = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, (int, float))}
        if "loss" not in trl_metrics:  # the summary at the end of training has no loss
            return
        metrics = {self.lab_names[name]: value for name, value in trl_metrics.items() if name in self.lab_names}
        metrics["lr_scale"] = trl_metrics["learning_rate"] / args.learning_rate
        metrics |= {f"trl/{name}": value for name, value in trl_metrics.items()}
        self.run.log(state.global_step, **metrics)
        self.note = f"loss {trl_metrics['loss']:.3f}"
        if not all(map(math.isfinite, (trl_metrics["loss"], trl_metrics.get("grad_norm", 0.0)))):
            raise NumericError(
                f"loss {trl_metrics['loss']} or gradient norm {trl_metrics.get('grad_norm')} is not finite at step "
                f"{state.global_step}; lower algorithm.lr or algorithm.max_grad_norm, or use runtime.dtype=float32"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        # The base class's rule is used because OnPolicy's needs experience, which only the native engine has.
        if Algorithm.evaluation_due(self.algorithm, state.global_step - 1):
            self.algorithm.evaluate(state.global_step - 1)
            control.should_save |= self.run.config.checkpoint.every_steps > 0
        self.ticker.advance(note=self.note)
        if self.stop.is_set():
            control.should_log = control.should_save = control.should_training_stop = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Write the stage's checkpoint, which refers to TRL's checkpoint; TRL's is complete at this point."""
        directory = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        stage_state = {
            "step": state.global_step,
            "trl": directory.name,
            "algorithm": self.algorithm.state_dict(),
            "log_size": self.run.log_size(),
        }
        checkpoint.save(self.run.directory, stage_state)


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
