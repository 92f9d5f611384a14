"""What is trained on, in colour: prompt dim, trained reply tokens green, EOS marked, padding grey.

The same is told by marks: trained tokens stand in [brackets], padding is "·".
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
    lines = [
        _line(encoder, row, {column for r, column in trained if r == i}, width - len(row[0]) - len(row[1]))
        for i, row in enumerate(rows)
    ]
    return Group(legend(), *lines)


def _line(encoder: Encoder, row: Row, trained: set[int], padding: int) -> Text:
    """One row; its columns in `trained` are what the mask takes."""
    (prompt, reply), text = row, Text("  ")
    begin, end = len(prompt), len(prompt) + len(reply)
    text.append("… " if begin > PROMPT_TOKENS else "", STYLES["prompt"])
    for column, token in list(enumerate([*prompt, *reply]))[max(0, begin - PROMPT_TOKENS) :]:
        if begin + REPLY_TOKENS <= column < end - LAST_TOKENS:
            text.append(f" … {end - LAST_TOKENS - column} more … " if column == begin + REPLY_TOKENS else "")
            continue
        shown = "EOS" if token == encoder.eos_id else encoder.tokenizer.decode([token]).replace("\n", "⏎")
        if column in trained:
            text.append(f"[{shown}]", STYLES["eos" if token == encoder.eos_id else "trained"])
        elif column >= begin:
            text.append(f"!{shown}!", STYLES["left out"])
        else:
            text.append(shown, STYLES["prompt"])
    return text.append("·" * min(padding, PADDING_TOKENS), STYLES["padding"])
