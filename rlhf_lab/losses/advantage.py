"""Advantages: credit assignment of rewards. Pure functions; B prompts, G responses each, R rows of T tokens.

Group estimators compare responses to one prompt, need no critic and return one number per response. `gae` uses a
critic and returns one number per token. A response without a score (NaN) counts in no mean and gets advantage 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Added to a group's sd: if all responses of a group score the same, their advantage is 0 instead of NaN.
EPS = 1e-6


class GroupScores(NamedTuple):
    """Inputs of the group estimators.

    Attributes:
        scores_BG: reward of each response; NaN where unscored.
        greedy_B: reward of the greedy response to each prompt, for `remax`.
        lengths_BG: length of each response, by which `canon` splits a group.
        inter_weight: weight μ of CANON's comparison between the two halves, in [0, 1].
    """

    scores_BG: Tensor
    greedy_B: Tensor | None = None
    lengths_BG: Tensor | None = None
    inter_weight: float = 0.5


def grpo(group: GroupScores) -> Tensor:
    """z-score within the group, (r − mean)/(sd + ε) (arXiv:2402.03300, section 4.1.2); sd divides by G − 1."""
    centred_BG = dr_grpo(group)
    scored_B = group.scores_BG.isfinite().sum(1)
    # Unscored responses were set to 0 by `dr_grpo`, so they add nothing to the sum of squares.
    variance_B = centred_BG.square().sum(1) / (scored_B - 1).clamp(min=1)
    sd_B = variance_B.sqrt()
    return centred_BG / (sd_B[:, None] + EPS)


def dr_grpo(group: GroupScores) -> Tensor:
    """r − mean of the group, without division by the group's sd (arXiv:2503.20783, section 3.2)."""
    scores_BG = group.scores_BG
    # The mean of equal scores may differ from them by a rounding error, and the z-score divides it by a sd of 0 + ε: in
    # float32 an advantage of up to 0.4. Relative to the lowest score, equal scores are exactly 0, and so is their mean.
    lowest_B1 = scores_BG.nan_to_num(nan=torch.inf).amin(1, keepdim=True)
    above_lowest_BG = scores_BG - lowest_B1
    return (above_lowest_BG - above_lowest_BG.nanmean(1, keepdim=True)).nan_to_num(0.0)


def rloo(group: GroupScores) -> Tensor:
    """r − mean of the other responses to the prompt: G/(G − 1)·(r − mean) (arXiv:2402.14740, eq. 8)."""
    scored_B1 = group.scores_BG.isfinite().sum(1, keepdim=True)
    return dr_grpo(group) * scored_B1 / (scored_B1 - 1).clamp(min=1)


def remax(group: GroupScores) -> Tensor:
    """r − reward of the greedy response (arXiv:2310.10505, eq. 6)."""
    assert group.greedy_B is not None, "remax needs the rewards of the greedy responses"
    return (group.scores_BG - group.greedy_B[:, None]).nan_to_num(0.0)


def canon(group: GroupScores) -> Tensor:
    """CANON (arXiv:2509.23962): rank a group by length, split it into halves, and compare across and within them.

    μ·(r − mean of the other half) + (1 − μ)·(r − mean of the own half). With μ = ½ and an even count this is `dr_grpo`.
    Only scored responses are split. With an odd count the middle response belongs to the lower half. An empty half gets
    the group's mean.
    """
    assert group.lengths_BG is not None, "canon needs the lengths of the responses"
    scores_BG = group.scores_BG
    scored_BG = scores_BG.isfinite()
    lengths_BG = group.lengths_BG.masked_fill(~scored_BG, torch.inf)  # unscored responses rank last
    # The argsort of an argsort is the rank of each response.
    rank_BG = lengths_BG.argsort(dim=1, stable=True).argsort(dim=1)
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
    after_last_R1 = torch.zeros_like(values_RT[:, :1])
    next_RT = torch.cat([values_RT[:, 1:], after_last_R1], dim=1)  # V_{t+1}
    delta_RT = rewards_RT + gamma * next_RT - values_RT
    # The recursion runs backwards, because the advantage of a token depends on that of the next one.
    advantage_RT = torch.zeros_like(delta_RT)
    advantage_R = torch.zeros_like(delta_RT[:, 0])
    for t in range(max_tokens - 1, -1, -1):
        advantage_R = delta_RT[:, t] + gamma * lam * advantage_R
        advantage_RT[:, t] = advantage_R
    return advantage_RT * mask_RT


def whiten(values_N: Tensor) -> Tensor:
    """Mean 0, sd 1 over all tokens of the batch."""
    return (values_N - values_N.mean()) / (values_N.std(unbiased=False) + 1e-8)
