"""Comments on changes: the sentences of the world, and the reader that finds them in any text.

    Nice work. Line 2 uses a wrong variable. Use price on line 2. I am sure about this.

A comment is a set of sentences. One that is not of this list is garble.
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
"""Kind of defect → the sentence that says on which line it is."""
FIXES = {
    "off_by_one": "Stop one earlier on line {}",
    "wrong_operator": "Compare with a double sign on line {}",
    "unused_result": "Keep the result on line {}",
    "wrong_variable": "Use {name} on line {}",
    "missing_check": "Check {name} before line {}",
    "not_closed": "Close {name} after line {}",
}
"""Kind of defect → the sentence that says what to do."""
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
    """What a text says as a comment, before it is held against a change. Counts are of sentences.

    Attributes:
        findings: lines and kinds of defects that it names, in order.
        fixes: lines, kinds and names of what it asks for, in order.
        approvals, praise, vague, confident: sentences of these lists.
        nits: the lines of its nit-picks.
        garbled: sentences that are of no list.
        repeats: sentences that stood in the text before.
        words: of the whole text.
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
        """All of them, those that are garble or repeated included."""
        fillers = self.praise + self.vague + self.confident + len(self.nits)
        return len(self.findings) + len(self.fixes) + self.approvals + fillers + self.garbled + self.repeats

    @property
    def padding(self) -> int:
        """Sentences that say nothing of what is wrong."""
        return self.praise + self.vague + self.confident + len(self.nits)


def finding(defect: Defect) -> str:
    """The sentence that names a defect, without its full stop."""
    return FINDINGS[defect.kind].format(defect.line)


def fix(defect: Defect) -> str:
    """The sentence that repairs a defect, without its full stop."""
    return FIXES[defect.kind].format(defect.line, name=defect.name)


def sentences(text: str) -> list[str]:
    """The text, divided at full stops, exclamation and question marks, which are left out."""
    pieces = (piece.strip() for piece in re.split(r"[.!?]", text))
    return [piece for piece in pieces if piece]


def read_comment(text: str) -> Comment:
    """Any text → what it says."""
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
    return {kind: re.compile(form.format(_LINE, name="(?P<name>[a-z]+)")) for kind, form in sentences_of.items()}


_FINDINGS = _patterns(FINDINGS)
_FIXES = _patterns(FIXES)
_NITS = [re.compile(form.format(_LINE)) for form in NITS]


def _match(patterns: dict[str, re.Pattern[str]], sentence: str) -> Defect | None:
    """The line, kind and name that a sentence of a family says; None for another sentence."""
    for kind, pattern in patterns.items():
        match = pattern.fullmatch(sentence)
        if match:
            return Defect(int(match["line"]), kind, match.groupdict().get("name") or "")
    return None


def _nit_line(sentence: str) -> int:
    """The line that a nit-pick is about; 0 for another sentence."""
    matches = (form.fullmatch(sentence) for form in _NITS)
    return next((int(match["line"]) for match in matches if match), 0)
