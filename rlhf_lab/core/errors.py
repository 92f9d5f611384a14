"""One base class for every error a user can cause. Messages say what is wrong, where and why, and how to fix it.

Each error also inherits the standard-library error it refines, so that generic handlers keep working.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class LabError(Exception):
    """Base class of all errors raised on purpose. `main` prints them without a traceback."""


class ConfigError(LabError, ValueError):
    """Error for an invalid configuration. It lists all problems at once.

    Args:
        problems: one line each, in the form "where: what is wrong; what to write instead".
    """

    def __init__(self, problems: Sequence[str] | str):
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class DataError(LabError, ValueError):
    """A file or row does not have the expected form. Names file, row, field, expected form and the fix."""


class ArtifactError(LabError, RuntimeError):
    """A stored artifact is missing, incomplete or damaged."""


class StorageError(LabError, OSError):
    """A file cannot be written: the disk is full, read-only or broken. Names the file, the reason and what to do."""


class JudgeUnavailable(LabError, ConnectionError):
    """A language model does not answer requests. Says how much was answered and saved, and how to resume.

    Attributes:
        answers: completions of the call in the order of its requests, None for a request without one; None if it is
            unknown which requests were answered.
    """

    answers: Sequence[Any] | None = None


class BudgetExceeded(LabError, RuntimeError):
    """The next request could exceed the remaining budget. Says what was spent and what was answered."""


OPTIONAL = {
    "trl": ("engine=trl", "'rlhf_lab[trl]'"),
    "peft": ("model.lora", "'rlhf_lab[lora]'"),
    "bitsandbytes": ("model.weights=nf4 or algorithm.optimizer=adamw_8bit", "'rlhf_lab[quantized]'"),
    "vllm": ("rollout=vllm with engine=trl", "'trl[vllm]'"),
    "deepspeed": ("sharding=zero1, zero2 or zero3", "'rlhf_lab[deepspeed]'"),
    "wandb": ("tracker=wandb", "'rlhf_lab[wandb]'"),
    "trackio": ("tracker=trackio", "'rlhf_lab[trackio]'"),
    "tensorboard": ("tracker=tensorboard", "'rlhf_lab[tensorboard]'"),
    "optuna": ("study.search", "'rlhf_lab[search]'"),
    "anthropic": ("judge=anthropic", "'rlhf_lab[judge]'"),
    "openai": ("judge=openai_compatible", "'rlhf_lab[judge]'"),
    "lm_eval": ("a suite with harness tasks", "'rlhf_lab[harness]'"),
    "pyarrow": ("reading Parquet files", "pyarrow"),
    "datasets": ("reading hub data sets", "datasets"),
    "openpyxl": ("reading .xlsx attachments", "'rlhf_lab[gaia]'"),
    "pypdf": ("reading .pdf attachments", "'rlhf_lab[gaia]'"),
    "huggingface_hub": ("reading attachments of a hub data set", "huggingface_hub"),
    "starlette": ("label", "'rlhf_lab[label]'"),
    "inspect_ai": ("export to inspect", "-c constraints-inspect.txt 'rlhf_lab[inspect]'"),
    "math_verify": ("reward=math with equivalence=symbolic", "'rlhf_lab[math]'"),
    "librosa": ("library=librosa or pitch=pyin", "'rlhf_lab[speech]'"),
    "speechmos": ("reward=dnsmos or algorithm.mos=dnsmos", "'rlhf_lab[speech]'"),
    "langdetect": ("instructions about the language of a response", "'rlhf_lab[ifeval]'"),
}
"""Optional library → (what needs it, arguments of `pip install`): the arguments of MissingDependency."""


class MissingDependency(LabError, ImportError):
    """An optional library is not installed. Names the feature and the install command."""

    def __init__(self, feature: str, install: str):
        super().__init__(f"{feature} needs a library that is not installed. Run: pip install {install}")


def import_optional(name: str) -> Any:
    """Import an optional library. Raises MissingDependency if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependency(*OPTIONAL[name]) from error


class NumericError(LabError, ArithmeticError):
    """A loss, gradient or score became NaN or infinite, or an invariant of training does not hold."""


class DeviceMemoryError(LabError, MemoryError):
    """The device has too little memory for the requested computation.

    Attributes:
        micro_batch_tokens: micro-batch size with which it may fit; None if smaller micro-batches cannot help or are
            not allowed.
    """

    def __init__(self, message: str, micro_batch_tokens: int | None = None):
        super().__init__(message)
        self.micro_batch_tokens = micro_batch_tokens


Rule = tuple[bool, str]
"""(condition, message if the condition is false): "field=value …; what to write instead"."""


def require(*rules: Rule) -> None:
    """Raise one ConfigError with the messages of all rules that do not hold; do nothing if all hold."""
    problems = [message for holds, message in rules if not holds]
    if problems:
        raise ConfigError(problems)
