"""Anthropic hh-rlhf (arXiv:2204.05862): `chosen` and `rejected` are full transcripts with the same history.

Each row is split at the last "\\n\\nAssistant:" boundary; rows whose histories differ are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.types import Corpus
from rlhf_lab.data.file_settings import HHRLHF
from rlhf_lab.data.loading import load_corpus
from rlhf_lab.data.rows import text_column
from rlhf_lab.data.split_rows import SplitRow, split_pair


def build(settings: HHRLHF) -> Corpus:
    """Load hh-rlhf. Raise DataError for unreadable rows; see `rlhf_lab.data.loading.load_corpus`."""
    return load_corpus("hh_rlhf", settings, parse_row)


def parse_row(values: Mapping[str, Any]) -> SplitRow:
    """Return prompt and responses of one row. Raise RowProblem if a side is missing or not text."""
    return split_pair(text_column(values, "chosen"), text_column(values, "rejected"))
