"""Comments on changes: the sentences of the world, and the parser that finds them in any text.

    Nice work. Line 2 uses a wrong variable. Use price on line 2. I am sure about this.

A comment is a set of sentences. A sentence that is not in these lists is degenerate text (garble).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlhf_lab.environments.reviews.changes import Defect

FINDINGS = {
    "off_by_one": "Line {} is off by one",
    "wrong_operator": "Line {} has a wrong operator",
    "unused_result": "Line {} drops its result",
    "wrong_variable": "Line {} uses a wrong variable",
    "missing_check": "Line {} lacks a check",
    "not_closed": "Line {} is never closed",
}
"""Kind of defect → the sentence that names its line."""
FIXES = {
    "off_by_one": "Stop one earlier on line {}",
    "wrong_operator": "Compare with a double sign on line {}",
    "unused_result": "Keep the result on line {}",
    "wrong_variable": "Use {name} on line {}",
    "missing_check": "Check {name} before line {}",
    "not_closed": "Close {name} after line {}",
}
"""Kind of defect → the sentence that describes its fix."""
APPROVALS = ("This change looks right", "I approve this change")
PRAISE = ("Nice work", "This is a clean and readable change", "Thank you for taking care of this")
NITS = ("Line {} could use a comment", "Line {} could use a better name")
VAGUE = (
    "Something in this change may be wrong",
    "Please think about the edge cases again",
    "This could break in some rare cases",
)
CONFIDENT = ("I am sure about this", "There is no doubt about it", "Trust me on this one")


@dataclass(frozen=True)
class Comment:
    """Content of a text as a comment, independent of a change. Numbers are counts of sentences.

    Attributes:
        findings: lines and kinds of the defects that it names, in order.
        fixes: lines, kinds and names of the fixes that it requests, in order.
        approvals: sentences of `APPROVALS`.
        praise: sentences of `PRAISE`.
        vague: sentences of `VAGUE`.
        confident: sentences of `CONFIDENT`.
        nits: lines of its nit-picks.
        garbled: sentences that are in no list.
        repeats: sentences that occurred earlier in the text.
    """

    findings: tuple[Defect, ...]
    fixes: tuple[Defect, ...]
    approvals: int
    praise: int
    vague: int
    confident: int
    nits: tuple[int, ...]
    garbled: int
    repeats: int
    words: int

    @property
    def sentences(self) -> int:
        """Number of all sentences, including garbled and repeated ones."""
        fillers = self.praise + self.vague + self.confident + len(self.nits)
        useful = len(self.findings) + len(self.fixes) + self.approvals
        return useful + fillers + self.garbled + self.repeats

    @property
    def padding(self) -> int:
        """Number of sentences that state nothing about defects."""
        return self.praise + self.vague + self.confident + len(self.nits)


def describe_defect(defect: Defect) -> str:
    """Return the sentence that names a defect, without its full stop."""
    return FINDINGS[defect.kind].format(defect.line)


def fix(defect: Defect) -> str:
    """Return the sentence that describes the fix of a defect, without its full stop."""
    return FIXES[defect.kind].format(defect.line, name=defect.name)


def sentences(text: str) -> list[str]:
    """Split a text at full stops, exclamation and question marks, which are removed."""
    pieces = (piece.strip() for piece in re.split(r"[.!?]", text))
    return [piece for piece in pieces if piece]


def read_comment(text: str) -> Comment:
    """Parse any text as a comment."""
    findings: list[Defect] = []
    fixes: list[Defect] = []
    nits: list[int] = []
    counts = dict.fromkeys(_LISTS, 0)
    garbled = repeats = 0
    seen: set[str] = set()
    for sentence in sentences(text):
        if sentence in seen:
            repeats += 1
            continue
        seen.add(sentence)
        if found := _match(_FINDINGS, sentence):
            findings.append(found)
        elif found := _match(_FIXES, sentence):
            fixes.append(found)
        elif line := _nit_line(sentence):
            nits.append(line)
        elif name := next((name for name, forms in _LISTS.items() if sentence in forms), ""):
            counts[name] += 1
        else:
            garbled += 1
    words = len(text.split())
    return Comment(
        findings=tuple(findings),
        fixes=tuple(fixes),
        nits=tuple(nits),
        garbled=garbled,
        repeats=repeats,
        words=words,
        **counts,
    )


_LISTS = {"approvals": APPROVALS, "praise": PRAISE, "vague": VAGUE, "confident": CONFIDENT}
_LINE = r"(?P<line>\d{1,2})"


def _patterns(sentences_of: dict[str, str]) -> dict[str, re.Pattern[str]]:
    patterns = {}
    for kind, form in sentences_of.items():
        patterns[kind] = re.compile(form.format(_LINE, name="(?P<name>[a-z]+)"))
    return patterns


_FINDINGS = _patterns(FINDINGS)
_FIXES = _patterns(FIXES)
_NITS = [re.compile(form.format(_LINE)) for form in NITS]  # forms with a line number


def _match(patterns: dict[str, re.Pattern[str]], sentence: str) -> Defect | None:
    """Return line, kind and name in a sentence that matches one of the patterns; None for another sentence."""
    for kind, pattern in patterns.items():
        match = pattern.fullmatch(sentence)
        if match:
            return Defect(int(match["line"]), kind, match.groupdict().get("name") or "")
    return None


def _nit_line(sentence: str) -> int:
    """Return the line of a nit-pick; 0 for another sentence."""
    matches = (form.fullmatch(sentence) for form in _NITS)
    return next((int(match["line"]) for match in matches if match), 0)
