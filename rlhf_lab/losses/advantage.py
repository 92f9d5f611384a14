"""Advantages: how a reply's reward is credited. Pure functions; B prompts, G replies each, R rows of T tokens.

Group estimators compare replies to one prompt and need no critic; they give one number per reply. `gae` uses a critic
and gives one number per token. A reply without a score (NaN) counts in no mean and has advantage 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-6  # added to a group's sd: replies that all score the same have advantage 0 instead of NaN


class GroupScores(NamedTuple):
    """What the group estimators read.

    Attributes:
        scores_BG: reward of each reply; NaN where unscored.
        greedy_B: reward of the greedy reply to each prompt, for `remax`.
        condition_BG: the metric `canon` splits a group by, e.g. reply length.
        inter_weight: weight μ of CANON's comparison between the two halves, in [0, 1].
    """

    scores_BG: Tensor
    greedy_B: Tensor | None = None
    condition_BG: Tensor | None = None
    inter_weight: float = 0.5


def grpo(group: GroupScores) -> Tensor:
    """z-score within the group, (r − mean)/(sd + ε) (arXiv:2402.03300, section 4.1.2); sd divides by G − 1."""
    centred_BG = dr_grpo(group)
    scored_B = group.scores_BG.isfinite().sum(1)
    sd_B = (centred_BG.square().sum(1) / (scored_B - 1).clamp(min=1)).sqrt()
    return centred_BG / (sd_B[:, None] + EPS)


def dr_grpo(group: GroupScores) -> Tensor:
    """r − mean of the group, not divided by its sd (arXiv:2503.20783, section 3.2)."""
    scores_BG = group.scores_BG
    return (scores_BG - scores_BG.nanmean(1, keepdim=True)).nan_to_num(0.0)


def rloo(group: GroupScores) -> Tensor:
    """r − mean of the other replies to the prompt: G/(G − 1)·(r − mean) (arXiv:2402.14740, eq. 8)."""
    scored_B1 = group.scores_BG.isfinite().sum(1, keepdim=True)
    return dr_grpo(group) * scored_B1 / (scored_B1 - 1).clamp(min=1)


def remax(group: GroupScores) -> Tensor:
    """r − reward of the greedy reply (arXiv:2310.10505, eq. 6)."""
    assert group.greedy_B is not None, "remax needs the greedy replies' rewards"
    return (group.scores_BG - group.greedy_B[:, None]).nan_to_num(0.0)


def canon(group: GroupScores) -> Tensor:
    """CANON (arXiv:2509.23962): a group is cut into equal halves by a metric, whichever direction pays.

    μ·(r − mean of the other half) + (1 − μ)·(r − mean of the own half). At μ = ½ and an even count this is `dr_grpo`.
    Halves are of the scored replies; with an odd count the reply in the middle belongs to the lower half. A half
    without a reply has the group's mean.
    """
    assert group.condition_BG is not None, "canon needs the metric it splits groups by"
    scores_BG = group.scores_BG
    scored_BG = scores_BG.isfinite()
    condition_BG = group.condition_BG.masked_fill(~scored_BG, torch.inf)  # unscored replies rank last
    rank_BG = condition_BG.argsort(dim=1, stable=True).argsort(dim=1)
    lower_size_B1 = (scored_BG.sum(1, keepdim=True) + 1) // 2
    upper_BG = scored_BG & (rank_BG >= lower_size_B1)
    group_mean_B1 = scores_BG.nanmean(1, keepdim=True)

    def mean_of(half_BG: Tensor) -> Tensor:
        half_mean_B1 = scores_BG.masked_fill(~half_BG, torch.nan).nanmean(1, keepdim=True)
        return torch.where(half_mean_B1.isnan(), group_mean_B1, half_mean_B1)

    upper_mean_B1 = mean_of(upper_BG)
    lower_mean_B1 = mean_of(scored_BG & ~upper_BG)
    own_half_BG = torch.where(upper_BG, upper_mean_B1, lower_mean_B1)
    other_half_BG = torch.where(upper_BG, lower_mean_B1, upper_mean_B1)
    inter_BG = group.inter_weight * (scores_BG - other_half_BG)
    intra_BG = (1 - group.inter_weight) * (scores_BG - own_half_BG)
    return (inter_BG + intra_BG).nan_to_num(0.0)


GROUP_ADVANTAGES: dict[str, Callable[[GroupScores], Tensor]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "remax": remax,
    "canon": canon,
}


def gae(rewards_RT: Tensor, values_RT: Tensor, length_R: Tensor, *, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation (arXiv:1506.02438, eq. 16), (R, T); 0 beyond each row's length.

    A_t = δ_t + γλ·A_{t+1}, δ_t = r_t + γ·V_{t+1} − V_t, and V = 0 after the last token: nothing follows it.
    """
    max_tokens = rewards_RT.shape[1]
    mask_RT = torch.arange(max_tokens, device=length_R.device) < length_R[:, None]
    rewards_RT = rewards_RT * mask_RT
    values_RT = values_RT * mask_RT  # so that V beyond a row's end is 0 in the δ of its last token
    next_RT = torch.cat([values_RT[:, 1:], torch.zeros_like(values_RT[:, :1])], dim=1)
    delta_RT = rewards_RT + gamma * next_RT - values_RT
    advantage_RT = torch.zeros_like(delta_RT)
    advantage_R = torch.zeros_like(delta_RT[:, 0])
    for t in range(max_tokens - 1, -1, -1):
        advantage_R = delta_RT[:, t] + gamma * lam * advantage_R
        advantage_RT[:, t] = advantage_R
    return advantage_RT * mask_RT


def whiten(values_N: Tensor) -> Tensor:
    """Mean 0, sd 1 over all tokens of the batch."""
    return (values_N - values_N.mean()) / (values_N.std(unbiased=False) + 1e-8)
