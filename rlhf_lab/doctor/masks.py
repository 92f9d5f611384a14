"""Coloured picture of the tokens that are trained on: prompt dim, trained response tokens green, padding grey.

Marks carry the same information without colour: trained tokens are in [brackets], padding is "·".
"""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from rlhf_lab.models.encoding import Encoder, Row, TokenBatch

SHOWN_ROWS = 2
"""Number of rows in the picture."""
PROMPT_TOKENS, REPLY_TOKENS, LAST_TOKENS, PADDING_TOKENS = 16, 24, 8, 8
"""Maximum number of tokens shown of a prompt's end, a response's beginning and end, and of padding."""
STYLES = {
    "prompt": "dim",
    "trained": "green",
    "eos": "bold black on green",
    "left out": "bold red",
    "padding": "grey50",
}
SAMPLES = ("prompt", "[trained]", "[EOS]", "!left out of the mask!", "· padding")
"""Legend of the styles."""


def legend() -> Text:
    text = Text("masks: ")
    for style, sample in zip(STYLES.values(), SAMPLES, strict=True):
        text.append(sample, style).append("  ")
    return text


def picture(encoder: Encoder, rows: list[Row]) -> Group:
    """Return the first rows of a batch, token by token, with the mask of `TokenBatch.targets`."""
    rows = rows[:SHOWN_ROWS]
    batch = TokenBatch.from_rows(rows)
    row_N, column_N = batch.targets()
    trained = set(zip(row_N.tolist(), column_N.tolist(), strict=True))
    width = batch.tokens_BT.shape[1]
    lines = []
    for index, (prompt, response) in enumerate(rows):
        columns = {column for row, column in trained if row == index}
        padding = width - len(prompt) - len(response)
        lines.append(_row_text(encoder, (prompt, response), columns, padding=padding))
    return Group(legend(), *lines)


def _row_text(encoder: Encoder, row: Row, trained: set[int], padding: int) -> Text:
    """Return the picture of one row of a batch.

    Args:
        trained: columns in the mask.
        padding: number of padding tokens behind the row.
    """
    prompt, response = row
    start, end = len(prompt), len(prompt) + len(response)
    text = Text("  ")
    text.append("… " if start > PROMPT_TOKENS else "", STYLES["prompt"])
    tokens = list(enumerate([*prompt, *response]))
    for column, token in tokens[max(0, start - PROMPT_TOKENS) :]:
        if start + REPLY_TOKENS <= column < end - LAST_TOKENS:  # skip the middle of a long response
            if column == start + REPLY_TOKENS:
                text.append(f" … {end - LAST_TOKENS - column} more … ")
            continue
        is_eos = token == encoder.eos_id
        shown = "EOS" if is_eos else encoder.tokenizer.decode([token]).replace("\n", "⏎")
        if column in trained:
            text.append(f"[{shown}]", STYLES["eos" if is_eos else "trained"])
        elif column >= start:
            text.append(f"!{shown}!", STYLES["left out"])
        else:
            text.append(shown, STYLES["prompt"])
    return text.append("·" * min(padding, PADDING_TOKENS), STYLES["padding"])
