"""Search for responses that a reward prefers: beam search over edits of sentences and words.

Per round, every kept response of every prompt is edited `candidates` times at random. All edited responses are scored
in one call of the reward, and the best `beam` responses of a prompt, old or new, are kept. The reward is a black box:
the search needs neither gradients nor the true reward.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_lab.core.progress import tracked
from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.attack.exploits import split_sentences, split_words
from rlhf_lab.evaluations.attack.settings import Attack

Score = Callable[[Sequence[str], Sequence[str]], FloatArray]
"""(prompts, responses) → scores, (N,); NaN for a response without a score."""
SPLIT = {"sentence": split_sentences, "word": split_words}
UNITS = {"sentences": ("sentence",), "words": ("word",), "both": ("sentence", "word")}
ATTEMPTS = 4
"""Number of attempts at an edited response that is new and not too long, per candidate."""


@dataclass(frozen=True)
class Edit:
    """Change of a response.

    Attributes:
        kind: operation and unit, such as "insert sentence".
        added: text that was inserted or put in place of another; empty for other operations.
        gain: increase of the reward by this edit.
    """

    kind: str
    added: str = ""
    gain: float = 0.0


@dataclass(frozen=True)
class Candidate:
    """Response with its score and the edits that lead to it from the start response."""

    response: str
    score: float
    edits: tuple[Edit, ...] = ()


class AttackSearch:
    """Beam search from one start response per prompt.

    Args:
        scores_P: scores of the start responses; a prompt whose start has no score is not searched.
        pool: unit ("sentence", "word") → texts that may be inserted.

    Attributes:
        beams: kept candidates of each prompt, best first.
        queries: number of responses that the reward has scored.
    """

    def __init__(
        self,
        score: Score,
        prompts: Sequence[str],
        starts: Sequence[str],
        scores_P: Sequence[float],
        pool: dict[str, list[str]],
        settings: Attack,
        max_words: int,
        seed: int,
    ):
        self.score = score
        self.prompts = prompts
        self.pool = pool
        self.settings = settings
        self.max_words = max_words
        # One generator per prompt, so that a prompt's edits do not depend on the other prompts.
        self.rng = [random.Random(f"{seed}/{index}") for index in range(len(prompts))]
        pairs = zip(starts, scores_P, strict=True)
        self.beams = [[Candidate(start, float(value))] for start, value in pairs]
        self.seen = [{start} for start in starts]
        self.queries = 0

    def run(self) -> list[Candidate]:
        """Run all rounds. Return the best response of each prompt: the start response if no edit was better."""
        for _ in tracked(range(self.settings.rounds), "rounds of the search"):
            self.round()
        return [beam[0] for beam in self.beams]

    def round(self) -> None:
        """Score edited versions of all kept responses, and keep the best of old and new ones."""
        edited: list[tuple[int, Candidate, Edit, str]] = []
        for index, beam in enumerate(self.beams):
            if math.isnan(beam[0].score):
                continue
            for parent in beam:
                for _ in range(self.settings.candidates):
                    new = self._new_response(index, parent.response)
                    if new is not None:
                        edited.append((index, parent, *new))
        if not edited:
            return
        scores_N = self.score([self.prompts[index] for index, *_ in edited], [text for *_, text in edited])
        self.queries += len(edited)
        for (index, parent, edit, text), value in zip(edited, scores_N.tolist(), strict=True):
            if not math.isnan(value):
                step = Edit(edit.kind, edit.added, value - parent.score)
                self.beams[index].append(Candidate(text, value, (*parent.edits, step)))
        # The sort is stable, so an equal score does not replace a response that was found earlier.
        for index, beam in enumerate(self.beams):
            self.beams[index] = sorted(beam, key=lambda found: -found.score)[: self.settings.beam]

    def _new_response(self, index: int, response: str) -> tuple[Edit, str] | None:
        """Return an edited response that was not scored before; None if no attempt gave one."""
        rng = self.rng[index]
        for _ in range(ATTEMPTS):
            edit, text = self._edited(response, rng)
            if text not in self.seen[index] and len(text.split()) <= self.max_words:
                self.seen[index].add(text)
                return edit, text
        return None

    def _edited(self, response: str, rng: random.Random) -> tuple[Edit, str]:
        unit = rng.choice(UNITS[self.settings.units])
        # White space before every piece, so that pieces can be joined in any order.
        pieces = [piece if piece[0].isspace() else f" {piece}" for piece in SPLIT[unit](response)]
        pool = self.pool[unit]
        possible = ["insert"] if pool else []
        if pieces:
            possible += ["delete", "repeat", *(["replace"] if pool else [])]
        if not possible:
            return Edit("none"), response
        operation = rng.choice(possible)
        position = rng.randrange(len(pieces)) if pieces else 0
        added = f" {rng.choice(pool)}" if operation in ("insert", "replace") else ""
        if operation == "insert":
            pieces.insert(rng.randint(0, len(pieces)), added)
        elif operation == "replace":
            pieces[position] = added
        elif operation == "delete":
            del pieces[position]
        else:
            pieces.insert(rng.randint(0, len(pieces)), pieces[position])
        return Edit(f"{operation} {unit}", added.strip()), "".join(pieces).strip()


def text_pool(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the distinct sentences and words of texts, in sorted order."""
    return {unit: sorted({piece.strip() for text in texts for piece in split(text)}) for unit, split in SPLIT.items()}
