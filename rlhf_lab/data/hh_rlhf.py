"""Anthropic hh-rlhf: `chosen` and `rejected` are whole transcripts that share a history (arXiv:2204.05862).

Each row is split at the last "\\n\\nAssistant:" boundary; rows whose histories differ are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import HHRLHF
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.replies import Split, split_pair
from rlhf_lab.data.rows import text_column


def build(settings: HHRLHF) -> Corpus:
    """Load hh-rlhf. Raises DataError; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("hh_rlhf", settings, parse_row)


def parse_row(values: Mapping[str, Any]) -> Split:
    """One row → prompt and replies. Raises RowProblem when a side is missing or not text."""
    return split_pair(text_column(values, "chosen"), text_column(values, "rejected"))
