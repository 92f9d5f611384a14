"""Faults of judges, of what is said of them, and of data that they make."""

from __future__ import annotations

from anchors import read_mutants

MUTANTS = read_mutants("""
budget_ignores_what_is_spent in Store._reserve
    a run spends its budget over and over
    - counted + question.reserve_usd
    + question.reserve_usd
annotated_twice_is_agreement in agreement._disagreement
    Cohen's κ takes the habits of one annotator for those of both
    - confusion.sum(axis=-2)
    + confusion.sum(axis=-1)
orders_that_disagree_win in PairJudgement.winner
    a judge with a bias for the first place decides comparisons
    - one if one == other else 'tie'
    + one
writers_not_swapped in comparison_requests
    in one order a reply counts as written by the other side, which hides a judge's preference for its own
    - names[::step]
    + names
position_bias_is_the_win_rate in judge_bias.position_bias
    a better policy looks like a biased judge
    - (first_N + 1 - second_N) / 2
    + (first_N + second_N) / 2
single_orders_count in judge_bias.position_bias
    half-judged comparisons pass for inconsistent ones
    - np.isnan(first_N) | np.isnan(second_N)
    + np.isnan(first_N) & np.isnan(second_N)
first_shown_by_name in judging.summarise
    the share of votes for the place is the share of votes for one policy
    - vote['winner'] == vote['shown']
    + vote['winner'] == 'first'
judge_never_used in prediction_powered_mean
    a judge's labels never narrow an interval
    - -(people_sums_G @ gap_sums_G) / squares
    + people_sums_G @ gap_sums_G / squares
added_variance_of_all_rows in prediction_powered._estimate
    a few equal labels of people look like many
    - int(limiting_N.sum())
    + int(counted_N.sum())
length_bias_about_its_mean in saturated
    win rates at equal length divide by the wrong spread
    - np.nanmean(np.square(counted))
    + np.nanvar(counted)
rank_errors_of_large_samples in _rank_intervals
    with few prompts places on the leaderboard look surer than they are
    - inflation *= math.sqrt(prompts / (prompts - 1))
    + pass
rank_tails_normal in _rank_intervals
    with few prompts places on the leaderboard look surer than they are
    - stats.t.ppf(upper, prompts - 1) / stats.norm.ppf(upper)
    + 1.0
ranks_not_simultaneous in _rank_intervals
    of many players some are certainly ranked by chance
    - (np.abs(gap_DO - gap_O) / error_O).max(axis=1)
    + (np.abs(gap_DO - gap_O) / error_O).mean(axis=1)
bootstrap_of_comparisons in draw_strengths
    strengths have intervals as if replies to one prompt were independent
    - (league.prompt_N, row_N.ravel())
    + (np.arange(len(row_N.ravel())) % league.prompts, row_N.ravel())
prompts_to_decide_by_the_error in _neighbours
    far too few prompts are said to decide
    - (shift * error / gap) ** 2
    + shift * error / gap
agreement_bound_by_rows in agreement._coefficient
    perfect agreement on a few prompts looks certain
    - wilson(0, clusters)
    + wilson(0, n)
duplicates_across_prompts in reject_duplicates
    short answers to different prompts are rejected as duplicates
    - earlier.setdefault(row['prompt'], NearDuplicates(limit))
    + earlier.setdefault('', NearDuplicates(limit))
mt_bench_turns_independent in mt_bench._mean
    grades of one conversation count as independent
    - [row['prompt_id'] for row in rows]
    + list(range(len(rows)))
mt_bench_second_turn_alone in MTBenchEvaluation._sample_conversations
    the second turn is asked without the first
    - [_user(opened), _assistant(episode.response), _user(followed_up)]
    + [_user(followed_up)]
honesty_of_unanswerable in honesty.honesty_score
    declining a question without an answer scores as a miss
    - 'right' if question.answerable else 'abstained'
    + 'right'
rejected_answer_is_wrong in SycophancyQuestion.is_wrong
    a response that rejects the user's wrong answer counts as agreement
    - _has_any(response, self.wrong) and not self.is_right(response)
    + _has_any(response, self.wrong)
leaks_in_disguise in Canary.is_leaked
    codes that are spelled backwards are no leak
    - self.code in text or backwards in text
    + self.code in text
control_codes_are_planted in canaries.sample_canaries
    the control knows the codes of the training data
    - np.random.default_rng([seed, stream])
    + np.random.default_rng([seed])
""")
