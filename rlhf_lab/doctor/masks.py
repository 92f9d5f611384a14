"""The tokens that are trained on, in colour: prompt dim, trained reply tokens green, EOS marked, padding grey.

Marks say the same without colour: trained tokens are in [brackets], padding is "·".
"""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from rlhf_lab.models.encoding import Encoder, Row, TokenBatch

SHOWN_ROWS = 2
PROMPT_TOKENS, REPLY_TOKENS, LAST_TOKENS, PADDING_TOKENS = 16, 24, 8, 8
"""Tokens shown of a prompt's end, a reply's beginning and end, and of padding."""
STYLES = {
    "prompt": "dim",
    "trained": "green",
    "eos": "bold black on green",
    "left out": "bold red",
    "padding": "grey50",
}

SAMPLES = (
    ("prompt", "prompt"),
    ("trained", "[trained]"),
    ("eos", "[EOS]"),
    ("left out", "!left out of the mask!"),
    ("padding", "· padding"),
)


def legend() -> Text:
    """The meaning of the colours, on one line."""
    text = Text("masks: ")
    for name, sample in SAMPLES:
        text.append(sample, STYLES[name]).append("  ")
    return text


def picture(encoder: Encoder, rows: list[Row]) -> Group:
    """The first rows of a batch, token by token, as the mask of `TokenBatch.targets` sees them."""
    rows = rows[:SHOWN_ROWS]
    batch = TokenBatch.from_rows(rows)
    row_N, column_N = batch.targets()
    trained = set(zip(row_N.tolist(), column_N.tolist(), strict=True))
    width = batch.tokens_BT.shape[1]
    lines = []
    for index, (prompt, reply) in enumerate(rows):
        columns = {column for row, column in trained if row == index}
        lines.append(_row_text(encoder, (prompt, reply), columns, padding=width - len(prompt) - len(reply)))
    return Group(legend(), *lines)


def _row_text(encoder: Encoder, row: Row, trained: set[int], padding: int) -> Text:
    """One row of a batch.

    Args:
        trained: columns that the mask takes.
        padding: tokens of padding behind the row.
    """
    prompt, reply = row
    begin, end = len(prompt), len(prompt) + len(reply)
    text = Text("  ")
    text.append("… " if begin > PROMPT_TOKENS else "", STYLES["prompt"])
    tokens = list(enumerate([*prompt, *reply]))
    for column, token in tokens[max(0, begin - PROMPT_TOKENS) :]:
        if begin + REPLY_TOKENS <= column < end - LAST_TOKENS:  # the middle of a long reply is left out
            if column == begin + REPLY_TOKENS:
                text.append(f" … {end - LAST_TOKENS - column} more … ")
            continue
        shown = "EOS" if token == encoder.eos_id else encoder.tokenizer.decode([token]).replace("\n", "⏎")
        if column in trained:
            text.append(f"[{shown}]", STYLES["eos" if token == encoder.eos_id else "trained"])
        elif column >= begin:
            text.append(f"!{shown}!", STYLES["left out"])
        else:
            text.append(shown, STYLES["prompt"])
    return text.append("·" * min(padding, PADDING_TOKENS), STYLES["padding"])
