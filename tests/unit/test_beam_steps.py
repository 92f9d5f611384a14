"""Beam search over steps, by hand: which beams survive, and how many tokens they cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.evaluations.beam_search import Beam, BeamSearch


def searching(scores: dict[str, float]) -> Any:
    """A search whose texts are the digits of their tokens, and whose reward is a table; NaN is an abstention."""
    search: Any = BeamSearch.__new__(BeamSearch)  # without a run and a policy
    search.encoder = SimpleNamespace(text=lambda token_ids, stop: "".join(map(str, token_ids)))
    search.stop = ()
    search.max_new_tokens = 8
    search.run = SimpleNamespace(corpus=SimpleNamespace(episodes=lambda prompts, texts: texts))
    search.reward = lambda texts: SimpleNamespace(total_N=np.array([scores[text] for text in texts]))
    return search


def test_the_best_distinct_beams_are_kept_best_first():
    search = searching({"1": 0.2, "2": 0.9, "3": float("nan"), "4": 0.5})
    candidates = [[Beam((1,)), Beam((2,)), Beam((2,)), Beam((3,)), Beam((4,))]]
    kept = search._select([Task("p")], candidates, 3)
    assert [(beam.token_ids, beam.score) for beam in kept[0]] == [((2,), 0.9), ((4,), 0.5), ((1,), 0.2)]


@pytest.mark.parametrize(("score_of_12", "best"), [(0.9, "12"), (0.1, "345")])
def test_complete_beams_stay_and_shared_tokens_cost_once(score_of_12, best):
    """Step 1 gives 12 (complete) and 3; step 2 extends 3 to 345 and 36. Tokens: 2 + 1, then 2 + 1."""
    steps = {(): [Beam((1, 2), finished=True), Beam((3,))], (3,): [Beam((3, 4, 5), True), Beam((3, 6), True)]}
    search = searching({"12": score_of_12, "3": 0.3, "345": 0.4, "36": 0.0})
    search._extend = lambda tasks, prompt_ids, beams, count, purpose: [steps[beam.token_ids] for _, beam in beams]
    (result,) = search.search([Task("p")], [[7]], beams=4, width=2)
    assert (result.response, result.tokens) == (best, 6)


@pytest.mark.parametrize(
    ("so_far", "step", "complete"),
    [("", "a\n", False), ("", "a!", True), ("", "a.", True), ("a\n", "\n", True), ("a\n", "b\n", False)],
    ids=["line", "stop", "end", "stop over two steps", "next line"],
)
def test_a_step_that_ends_with_a_stop_text_of_the_run_completes_its_beam(so_far, step, complete):
    """Tokens are code points, and the stop token is a full stop. Beams went on after `rollout.stop`."""
    search = searching({})
    search.encoder.stop_ids, search.encoder.decode = (ord("."),), lambda token_ids: "".join(map(chr, token_ids))
    search.stop = ("!", "\n\n")
    search.policy, search.run.seed = None, lambda purpose, seed: 0
    search.run.config = SimpleNamespace(evaluation=SimpleNamespace(seed=0))
    episode = Episode(Task("p"), "p", "a", [7], (Segment([*map(ord, step)], sampled=True),), True)
    search.steps = SimpleNamespace(collect=lambda *arguments, **options: [[episode]])
    ((beam,),) = search._extend([Task("p")], [[7]], [(0, Beam((*map(ord, so_far),)))], 1, "step")
    assert beam.finished is complete
