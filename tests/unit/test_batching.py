"""Every example once per epoch, the same plan every time, no forward pass above its budget."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.training.batching import micro_batches, plan_steps

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80)


def plan(lengths, *, batch_size=8, epochs=1.0, bucket=4, seed=0):
    return plan_steps(lengths, batch_size=batch_size, epochs=epochs, bucket_batches=bucket, seed=seed)


@given(LENGTHS, st.integers(1, 16), st.integers(1, 8), st.integers(0, 2**63 - 1))
def test_one_epoch_holds_every_example_once(lengths, batch_size, bucket, seed):
    steps = plan(lengths, batch_size=batch_size, bucket=bucket, seed=seed)
    assert sorted(i for step in steps for i in step) == list(range(len(lengths)))
    assert max(map(len, steps)) <= batch_size


def test_epochs_are_whole_and_differ():
    steps = plan([1] * 24, epochs=3.0)
    epochs = [[i for step in steps[k : k + 3] for i in step] for k in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize(("epochs", "count"), [(0.5, 2), (1.0, 3), (1.5, 5), (2.0, 6)])
def test_fractional_epochs(epochs, count):
    """24 examples in batches of 8: ⌈epochs · 3⌉ steps."""
    assert len(plan([1] * 24, epochs=epochs)) == count


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "count"), [(10, 3, 4, 16), (10, 16, 3, 3), (100, 10, 1.1, 11)]
)
def test_every_epoch_has_its_smaller_last_batch(rows, batch_size, epochs, count):
    """10 rows in batches of 3 are four batches per epoch; ⌈4 · 10/3⌉ = 14 steps would miss two of the last epoch."""
    steps = plan([1] * rows, batch_size=batch_size, epochs=epochs)
    assert len(steps) == count and sum(map(len, steps)) == round(epochs * rows)


@given(st.integers(1, 80), st.integers(1, 16), st.integers(1, 200))
def test_steps_of_a_round_are_never_missing(rows, batch_size, steps):
    """Rounds of self-training and iterative DPO plan enough passes for a number of steps, and take the first ones."""
    assert len(plan([1] * rows, batch_size=batch_size, epochs=steps * batch_size / rows)) >= steps


def test_the_plan_follows_from_the_seed():
    lengths = list(range(1, 50))
    assert plan(lengths, seed=3) == plan(lengths, seed=3)
    assert plan(lengths, seed=3) != plan(lengths, seed=4)


def padding(steps, lengths):
    return sum(max(lengths[i] for i in step) * len(step) - sum(lengths[i] for i in step) for step in steps)


def test_buckets_save_padding_but_do_not_sort_the_epoch():
    lengths = [1 + (i * 37) % 64 for i in range(256)]
    simple, bucketed = plan(lengths, bucket=1), plan(lengths, bucket=16)
    assert padding(bucketed, lengths) < 0.35 * padding(simple, lengths)
    order = [max(lengths[i] for i in step) for step in bucketed]
    assert order != sorted(order)
    assert order != sorted(order, reverse=True)


@given(LENGTHS, st.integers(1, 200))
def test_micro_batches_keep_the_budget(lengths, budget):
    parts = micro_batches(range(len(lengths)), lengths, budget)
    assert Counter(i for part in parts for i in part) == Counter(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[i] for i in part) <= budget


def test_no_budget_is_one_pass():
    assert micro_batches([3, 1, 2], [9] * 4, 0) == [[3, 1, 2]]
