"""Positions of rows in packed rows, and what each slot sees, by hand."""

from __future__ import annotations

import torch

from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.packing import ATTENTION_COST, Lengths, PackedRows, cost, end_to_end, pack

# A group of two responses, and a separate prompt: p p p a a a, p p p b, q q c c. A response's last token has no slot.
ROWS = [([1, 2, 3], [4, 5, 6]), ([1, 2, 3], [7]), ([8, 9], [10, 11])]


def lengths() -> Lengths:
    return Lengths.of(TokenBatch.from_rows(ROWS))


def test_lengths_count_what_predicts_a_token() -> None:
    assert lengths() == Lengths(prompts=[3, 3, 2], slots=[5, 3, 3], groups=[[0, 1], [2]])
    assert lengths().minimum == 3 + 2 + 0 + 2 + 1


def test_units_lie_longest_first_where_there_is_room() -> None:
    wide = pack(lengths(), 8)
    assert [[unit.rows for unit in row] for row in wide.rows] == [[(0, 1), (2,)]]
    assert (wide.slots, wide.pairs) == (8, 64)
    narrow = pack(lengths(), 5)  # widths are rounded up to 8 only after units are laid
    assert [[unit.slots for unit in row] for row in narrow.rows] == [[5], [3]]
    assert pack(lengths(), 0) == narrow  # the longest row fits in any case


def test_a_group_that_is_too_wide_is_split_and_its_prompt_repeated() -> None:
    """A prompt of 4 and responses of 6, 5, 4 and 3 slots in 4 + 10: first-fit takes 6 + 4, then 5 + 3."""
    rows = [([1, 2, 3, 4], list(range(count))) for count in (7, 6, 5, 4)]
    packing = pack(Lengths.of(TokenBatch.from_rows(rows)), 14)
    assert [[(unit.rows, unit.slots) for unit in row] for row in packing.rows] == [[((0, 2), 14)], [((1, 3), 12)]]
    assert packing.width == 16


def test_what_each_slot_holds_and_sees() -> None:
    batch = TokenBatch.from_rows(ROWS)
    packed = PackedRows.of(batch, pack(lengths(), 9))
    assert packed.tokens_RW[0, :8].tolist() == [1, 2, 3, 4, 5, 8, 9, 10]
    assert packed.position_RW[0, :8].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    sees = packed.mask(torch.float32)[0, 0] == 0
    first_response = [column in (0, 1, 2, 3, 4) for column in range(16)]
    assert sees[4].tolist() == first_response
    assert sees[7].nonzero().flatten().tolist() == [5, 6, 7]
    assert sees.diagonal().all()  # padding too: a query without a key would give NaN


def test_replies_to_one_prompt_do_not_see_each_other() -> None:
    rows = [([1, 2], [3, 4, 5]), ([1, 2], [6, 7, 8])]
    batch = TokenBatch.from_rows(rows)
    packed = PackedRows.of(batch, pack(Lengths.of(batch), 8))
    sees = packed.mask(torch.float32)[0, 0] == 0
    assert packed.tokens_RW[0, :6].tolist() == [1, 2, 3, 4, 6, 7]
    assert packed.position_RW[0, :6].tolist() == [0, 1, 2, 3, 2, 3]
    assert sees[5].nonzero().flatten().tolist() == [0, 1, 4, 5]


def test_the_slot_before_each_target() -> None:
    """Targets row by row; a response's first token is predicted by its prompt's last, common to rows 0 and 1."""
    batch = TokenBatch.from_rows(ROWS)
    packed = PackedRows.of(batch, pack(lengths(), 9))
    row_N, column_N = batch.targets()
    slots = packed.slots_before(row_N, column_N)
    assert slots.tolist() == [2, 3, 4, 2, 6, 7]
    assert packed.tokens_RW.flatten()[slots].tolist() == batch.tokens_BT[row_N, column_N - 1].tolist()


def test_tokens_of_a_later_reply_follow_its_own() -> None:
    """Slots hold 1 2 | 3 4 | 6 7. Both responses follow slot 1; 4 and 5 follow 3 and 4, and 7 and 8 follow 6 and 7."""
    batch = TokenBatch.from_rows([([1, 2], [3, 4, 5]), ([1, 2], [6, 7, 8])])
    packed = PackedRows.of(batch, pack(Lengths.of(batch), 8))
    assert packed.slots_before(*batch.targets()).tolist() == [1, 2, 3, 1, 4, 5]


def test_rows_end_to_end_have_no_padding_and_may_be_empty() -> None:
    batch = TokenBatch.from_rows(ROWS)
    packed = PackedRows.of(batch, end_to_end(lengths()))
    assert packed.tokens_RW.tolist() == [[1, 2, 3, 4, 5, 1, 2, 3, 8, 9, 10]]
    assert packed.position_RW.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]]
    # Nothing predicts the first token of a row without a prompt; a response without tokens is nothing to predict.
    rows = [([], [1, 2, 3]), ([4, 5], []), ([6], [7])]
    batch = TokenBatch.from_rows(rows)
    packed = PackedRows.of(batch, pack(Lengths.of(batch), 8))
    row_N, column_N = batch.targets()
    before = packed.tokens_RW.flatten()[packed.slots_before(row_N, column_N)]
    assert before.tolist() == [1, 2, 6]


def test_cost_by_hand() -> None:
    """Width 100: a slot takes 12·100² multiply-adds a block, a pair 2·100, which take half as long again."""
    assert cost(10, 600, 100) == 10 + ATTENTION_COST * 600 * 200 / 120_000 == 10 + 1.5
