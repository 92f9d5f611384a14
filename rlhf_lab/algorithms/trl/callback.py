"""Callback for TRL's trainers: logs, evaluates, checkpoints and stops a stage as the native engine does."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_lab.algorithms.trl import options
from rlhf_lab.core.errors import NumericError
from rlhf_lab.core.progress import Ticker
from rlhf_lab.training import checkpoint
from rlhf_lab.training.loop import Algorithm
from rlhf_lab.training.run import Run


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
