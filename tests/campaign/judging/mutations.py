"""Faults of judges, of what is said of them, and of data that they make."""

from __future__ import annotations

from anchors import Mutant

MUTANTS = (
    Mutant(
        "budget_ignores_what_is_spent",
        "Store._reserve",
        "counted + question.reserve_usd",
        "question.reserve_usd",
        "a run spends its budget over and over",
    ),
    Mutant(
        "annotated_twice_is_agreement",
        "_pooled_disagreement",
        "confusion.sum(axis=-1) + confusion.sum(axis=-2)",
        "2 * confusion.sum(axis=-1)",
        "Scott's π takes the habits of one annotator for those of both",
    ),
    Mutant(
        "orders_that_disagree_win",
        "PairJudgement.winner",
        "one if one == other else 'tie'",
        "one",
        "a judge with a bias for the first place decides comparisons",
    ),
    Mutant(
        "writers_not_swapped",
        "comparison_requests",
        "names[::step]",
        "names",
        "in one order a reply counts as written by the other side, which hides a judge's preference for its own",
    ),
    Mutant(
        "position_bias_is_the_win_rate",
        "judge_bias.position_bias",
        "(first_N + 1 - second_N) / 2",
        "(first_N + second_N) / 2",
        "a better policy looks like a biased judge",
    ),
    Mutant(
        "single_orders_count",
        "judge_bias.position_bias",
        "np.isnan(first_N) | np.isnan(second_N)",
        "np.isnan(first_N) & np.isnan(second_N)",
        "half-judged comparisons pass for inconsistent ones",
    ),
    Mutant(
        "unanimous_votes_too_wide",
        "judging.proportion",
        "least_sd_of_outcomes(score_N, 1 - score_N) / 2",
        "least_sd_of_outcomes(score_N, 1 - score_N)",
        "unanimous win rates have intervals of twice their width",
    ),
    Mutant(
        "first_shown_by_name",
        "judging.summarise",
        "vote['winner'] == vote['shown']",
        "vote['winner'] == 'first'",
        "the share of votes for the place is the share of votes for one policy",
    ),
    Mutant(
        "judge_never_used",
        "prediction_powered_mean",
        "-(people_sums_G @ gap_sums_G) / squares",
        "people_sums_G @ gap_sums_G / squares",
        "a judge's labels never narrow an interval",
    ),
    Mutant(
        "added_variance_of_all_rows",
        "prediction_powered._estimate",
        "int(limiting_N.sum())",
        "int(counted_N.sum())",
        "a few equal labels of people look like many",
    ),
    Mutant(
        "length_bias_about_its_mean",
        "saturated",
        "np.nanmean(np.square(counted))",
        "np.nanvar(counted)",
        "win rates at equal length divide by the wrong spread",
    ),
    Mutant(
        "rank_errors_of_large_samples",
        "_rank_intervals",
        "inflation *= math.sqrt(prompts / (prompts - 1))",
        "pass",
        "with few prompts places on the leaderboard look surer than they are",
    ),
    Mutant(
        "rank_tails_normal",
        "_rank_intervals",
        "stats.t.ppf((1 + level) / 2, prompts - 1) / stats.norm.ppf((1 + level) / 2)",
        "1.0",
        "with few prompts places on the leaderboard look surer than they are",
    ),
    Mutant(
        "ranks_not_simultaneous",
        "_rank_intervals",
        "(np.abs(gap_DO - gap_O) / error_O).max(axis=1)",
        "(np.abs(gap_DO - gap_O) / error_O).mean(axis=1)",
        "of many players some are certainly ranked by chance",
    ),
    Mutant(
        "bootstrap_of_comparisons",
        "draw_strengths",
        "(league.prompt_N, row_N.ravel())",
        "(np.arange(len(row_N.ravel())) % league.prompts, row_N.ravel())",
        "strengths have intervals as if replies to one prompt were independent",
    ),
    Mutant(
        "prompts_to_decide_by_the_error",
        "_neighbours",
        "(shift * error / gap) ** 2",
        "shift * error / gap",
        "far too few prompts are said to decide",
    ),
    Mutant(
        "agreement_bound_by_rows",
        "agreement._coefficient",
        "wilson(0, clusters, level=level)",
        "wilson(0, n, level=level)",
        "perfect agreement on a few prompts looks certain",
    ),
    Mutant(
        "duplicates_across_prompts",
        "reject_duplicates",
        "earlier.setdefault(row['prompt'], NearDuplicates(limit))",
        "earlier.setdefault('', NearDuplicates(limit))",
        "short answers to different prompts are rejected as duplicates",
    ),
)
