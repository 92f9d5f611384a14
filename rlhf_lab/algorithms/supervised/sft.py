"""Supervised fine-tuning: causal LM loss on the tokens of the chosen responses; prompt and padding have no loss.

A conversation is one row, in which every assistant turn may be learned. The turns of other roles have no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rlhf_lab.algorithms.supervised.settings import SFT
from rlhf_lab.core.types import Pair
from rlhf_lab.evaluations.reward_audit import HELD_OUT_PAIRS, prompt_ids
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.turns import MaskedRow, RowFile, conversation_row
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size, start_policy

AppendableRows = list[MaskedRow] | RowFile


class SupervisedFineTuning(Algorithm):
    """One pass per epoch over (prompt, chosen response) rows."""

    settings: SFT

    def __init__(self, settings: SFT, run: Run):
        self.settings, self.run = settings, run
        self.model, self.encoder = start_policy(run)
        corpus = run.corpus
        # A streamed corpus may not fit into memory, so its token rows go to a file.
        is_streamed = getattr(run.config.data, "streaming", False)
        used = filter(settings.uses_row, corpus.train)
        self.rows: Sequence[MaskedRow] = self._tokenise(used, RowFile() if is_streamed else [])
        if len(self.rows) < len(corpus.train):
            marks = "garbled or wrong" if settings.only_correct else "garbled"
            run.note(f"excluded {len(corpus.train) - len(self.rows)} responses that the data marks as {marks}")
        heldout = [p for p in run.corpus.test if not p.meta.get("garble_chosen")][:HELD_OUT_PAIRS]
        self.heldout: Sequence[MaskedRow] = self._tokenise(heldout, [])
        self.held_out_prompts = prompt_ids(heldout)
        self.lengths = [len(prompt) + len(response) for (prompt, response), _ in self.rows]
        # Nothing predicts the first token of a row without a prompt, so it has no loss.
        self.learned = [sum(mask if prompt else mask[1:]) for (prompt, _), mask in self.rows]
        self.steps = epoch_steps(self.lengths, settings, run.seed("sft/order", settings.order))
        self.total_steps = len(self.steps)

    def _tokenise(self, pairs: Iterable[Pair], rows: AppendableRows) -> Sequence[MaskedRow]:
        """Append the token rows of pairs, with a mask of their learned tokens, to `rows` and return it."""
        max_length = self.settings.max_length
        for pair in pairs:
            learn_from = self.settings.learn_from(pair)
            rows.append(conversation_row(self.encoder, pair.prompt, pair.chosen, max_length, learn_from))
        return rows

    def collect(self, step: int) -> StepBatch:
        indices = self.steps[step]
        splits = micro_batches(indices, self.lengths, self.settings.micro_batch_tokens)
        batches = [self._batch([self.rows[i] for i in split]) for split in splits]
        # The unit is a learned token, so that every token of a step has the same weight.
        return StepBatch(batches, units=sum(self.learned[i] for i in indices))

    def _batch(self, rows: Sequence[MaskedRow]) -> TokenBatch:
        masks = [mask for _, mask in rows]
        # A batch in which every response token is learned needs no mask tensor.
        every_token = all(map(all, masks))
        return TokenBatch.from_rows([row for row, _ in rows], self.run.device, None if every_token else masks)

    def loss(self, micro: TokenBatch) -> LossOutput:
        return LossOutput(-token_logps(self.model, micro).logps_N)

    def evaluate(self, step: int) -> None:
        self.run.log(step + 1, heldout_nll=float(np.concatenate(self._heldout_nll()).mean()))

    def finish(self) -> Result:
        nll = self._heldout_nll()
        # The interval clusters by prompt: neither tokens of one response nor responses to one prompt are independent.
        prompt_of_token = np.repeat(self.held_out_prompts, [len(token_nll) for token_nll in nll])
        metrics: dict[str, Any] = {
            "heldout_nll": clustered_mean(np.concatenate(nll), prompt_of_token),
            "rows": len(self.rows),
            "steps": self.total_steps,
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(metrics=metrics, primary=["heldout_nll"])

    @torch.no_grad()
    def _heldout_nll(self) -> list[np.ndarray]:
        """−log p of each learned token, nats, one array per held-out row."""
        nll_of_rows = []
        for start in range(0, len(self.heldout), 64):
            batch = self._batch(self.heldout[start : start + 64])
            logps = token_logps(self.model, batch)
            tokens_per_row = torch.bincount(logps.row_N, minlength=logps.rows).tolist()
            nll_of_rows += [-row_logps.cpu().numpy() for row_logps in logps.logps_N.split(tokens_per_row)]
        return nll_of_rows


def build(settings: SFT, run: Run) -> SupervisedFineTuning:
    return SupervisedFineTuning(settings, run)
