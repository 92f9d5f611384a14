"""The columns of a row that are not text of its conversation: what rewards read besides prompt and reply."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from rlhf_lab.data.rows import column

LARGE = 2**16
"""Characters of JSON above which the columns of one row are worth a remark: every row's are held in memory."""
TOO_LARGE = "large further columns; name those that rewards read with data.columns=[…]"
NOT_JSON = "a further column holds what JSON cannot (bytes, an image) and is left out"
OTHER_FACTS = "same prompt as before, other columns: the first row's are kept"


def facts_of(
    values: Mapping[str, Any], texts: Collection[str], columns: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """(column → JSON value, what is worth a remark) of a row. Nulls are left out.

    Args:
        texts: the columns that hold the conversation.
        columns: those to keep; None keeps all others.
    Raises:
        RowProblem: a column that `columns` names is missing.
    """
    if columns is None:
        columns = [name for name in values if name not in texts]
    facts: dict[str, Any] = {}
    remarks = []
    size = 0
    for name in columns:
        value = column(values, name)
        try:
            text = json.dumps(value)
        except (TypeError, ValueError):
            remarks.append(NOT_JSON)
            continue
        if value is not None:
            size += len(text)
            facts[name] = value
    if size > LARGE:
        remarks.append(TOO_LARGE)
    return facts, remarks


def with_facts(fingerprint: str, facts: Mapping[str, Mapping[str, Any]]) -> str:
    """A corpus's fingerprint that covers its facts too; the same where there are none."""
    if not facts:
        return fingerprint
    content = json.dumps(facts, sort_keys=True)
    return sha256(f"{fingerprint} {content}".encode("utf-8", "surrogatepass")).hexdigest()
