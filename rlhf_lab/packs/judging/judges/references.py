"""Reference answers for a judge, from a column of the data or of a file. A row without one is judged without one."""

from __future__ import annotations

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.rows import is_missing


def reference_text(value: object) -> str | None:
    """Return a reference answer as text; None for an empty cell, which would be shown as a right answer."""
    if is_missing(value) or not str(value).strip():
        return None
    return str(value)


def reference_column(corpus: Corpus, column: str, setting: str) -> dict[str, str]:
    """Return prompt → reference answer. Raises ConfigError, which names the setting, if no prompt has one."""
    prompts = [task.prompt for split in ("train", "test") for task in corpus.tasks(split)]
    # rows may lack the column, but not all of them
    values = {prompt: reference_text(corpus.task(prompt).metadata.get(column)) for prompt in prompts}
    texts = {prompt: text for prompt, text in values.items() if text is not None}
    if not texts:
        known = dict.fromkeys(name for prompt in prompts for name in corpus.task(prompt).metadata)
        raise ConfigError(
            f"{setting}={column}: no row of data={corpus.name} has text in this column (the columns are: "
            f"{', '.join(known) or 'none'}); name another, or leave {setting.rpartition('.')[2]} out"
        )
    return texts
