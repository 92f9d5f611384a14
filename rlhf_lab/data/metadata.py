"""Metadata of a row: its columns besides the text of the conversation. Rewards read them with prompt and response."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from rlhf_lab.data.rows import column, is_missing

LARGE = 2**16
"""Number of JSON characters above which the metadata of one row are noted, because those of all rows are in memory."""
TOO_LARGE = "large metadata columns; name those that rewards read with data.columns=[…]"
NOT_JSON = "a metadata column has a value that JSON cannot represent (bytes, an image) and is left out"
OTHER_FACTS = "same prompt as before, but other metadata: those of the first row are used"


def metadata_of(
    values: Mapping[str, Any], texts: Collection[str], columns: Sequence[str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Return (column → JSON value, notes) of a row. Missing values (null, NaN) are left out.

    Args:
        values: column → value of the row.
        texts: columns of the conversation, which are not metadata.
        columns: columns to keep; None keeps all others.

    Raises:
        RowProblem: a column that `columns` names is missing.
    """
    if columns is None:
        columns = [name for name in values if name not in texts]
    metadata: dict[str, Any] = {}
    notes = []
    size = 0
    for name in columns:
        value = column(values, name)
        if is_missing(value):
            continue
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            notes.append(NOT_JSON)
            continue
        size += len(text)
        metadata[name] = value
    if size > LARGE:
        notes.append(TOO_LARGE)
    return metadata, notes


def fingerprint_with_metadata(fingerprint: str, metadata: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a fingerprint that also covers the metadata of the corpus; unchanged if there are none."""
    # without metadata the fingerprint stays the one of the texts, so that stored runs keep their keys
    if not metadata:
        return fingerprint
    content = json.dumps(metadata, sort_keys=True)
    return sha256(f"{fingerprint} {content}".encode("utf-8", "surrogatepass")).hexdigest()
