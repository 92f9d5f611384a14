"""Tasks of lm-evaluation-harness, run by the harness itself on a policy. The harness is imported only when it is used.

It returns a value per document, so two runs are compared document by document. Needs `pip install 'rlhf_lab[harness]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from torch import nn

from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.evaluations.suite.suite_file import HarnessTask
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.sharded import blocks_dtype

Documents = dict[str, float]
"""Document of a task → its value."""


def run_tasks(model: nn.Module, encoder: Encoder, tasks: Mapping[str, HarnessTask], batch: int) -> dict[str, Documents]:
    """Return the values of each task's documents.

    Raises:
        MissingDependency: the harness is not installed.
        ConfigError: the harness has no such task, or the task has no such metric per document.
    """
    if find_spec("lm_eval") is None:
        raise MissingDependency(*OPTIONAL["lm_eval"])
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    dtype = blocks_dtype(model)  # set for a model that computes under autocast; see `models/weights.py`
    autocast = {"mixed_precision_dtype": str(dtype).removeprefix("torch.")} if dtype else {}
    wrapped = HFLM(pretrained=model, tokenizer=encoder.tokenizer, batch_size=batch, **autocast)
    values = {}
    for name, task in tasks.items():
        manager = TaskManager(include_path=task.include or None)
        task_name = task.task or name
        if task_name not in manager.all_tasks:
            raise ConfigError(f"harness.{name}: lm-evaluation-harness has no task {task_name}; correct task or include")
        result: Mapping[str, Any] = simple_evaluate(
            model=wrapped,
            tasks=[task_name],
            task_manager=manager,
            num_fewshot=task.shots,
            limit=task.limit or None,
            # questions as the policy was trained to read them; each shot is a separate turn
            apply_chat_template=encoder.chat is not None,
            fewshot_as_multiturn=encoder.chat is not None,
            log_samples=True,
            bootstrap_iters=0,  # rlhf_lab computes its own intervals
        )
        values[name] = _values(name, task, result["samples"])
    return values


def _values(name: str, task: HarnessTask, samples: Mapping[str, Any]) -> Documents:
    """Return the metric of every document; for a group of tasks, of the documents of all its tasks."""
    values: Documents = {}
    for of_task, documents in samples.items():
        for document in documents:
            if not isinstance(document.get(task.metric), (int, float)):
                known = ", ".join(document.get("metrics") or ()) or "none"
                raise ConfigError(
                    f"harness.{name}: {of_task} has no number {task.metric} per document; use one of its "
                    f"metrics: {known}"
                )
            values[f"{of_task}/{document['doc_id']}"] = float(document[task.metric])
    return values
