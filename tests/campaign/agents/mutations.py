"""Faults of agents: their tools, their benchmarks, and what is counted of their attempts."""

from __future__ import annotations

from anchors import read_mutants

MUTANTS = read_mutants("""
busy_tool_without_luck_of_its_own in flaky.run
    a busy tool is busy for ever, so that calling it again never helps
    - f'{seed}/{tool.name}/{calls}'
    + f'{seed}/{tool.name}'
matched_calls_not_one_to_one in call_scores._score
    the same call made ten times is ten right calls
    - round(best_pairing(same_ME))
    + round(float(same_ME.max(axis=1, initial=0.0).sum())) if same_ME.size else 0
retries_count_against_an_agent in without_retries
    calls that a busy tool made necessary count, and calls that never worked do not
    - key in worked_later
    + key not in worked_later
gaia_number_keeps_its_commas in DROPPED_FROM_NUMBERS
    an answer of 1,000 is wrong where 1000 is right
    - str.maketrans('', '', '$%,')
    + str.maketrans('', '', '$%')
gaia_list_prefix_is_right in official._same_list
    a list with more elements than the right one is right
    - len(answers) != len(golds)
    + len(answers) < len(golds)
gaia_list_elements_without_punctuation in official._same_element
    scores are above those of the leaderboard
    - _to_plain(answer) == _to_plain(gold)
    + _to_plain(answer).translate(PUNCTUATION) == _to_plain(gold).translate(PUNCTUATION)
redirects_unchecked in _CheckedRedirect.redirect_request
    a page of the web leads an agent to services of this machine
    - _check_address(newurl, self._allow_private)
    + newurl
attempts_known_without_facts in question_content
    a resumed benchmark takes attempts whose right answer has changed since
    - dict(question.task.metadata)
    + {}
attempts_known_without_draw in plan_attempts
    several attempts at a task are one attempt counted several times
    - {'task': question_content(question, tools), 'draw': draw, 'seed': seed}
    + {'task': question_content(question, tools), 'seed': seed}
repeated_words_once in token_f1
    answers with repeated words score too low
    - (answered & expected).total()
    + len(answered & expected)
refusals_are_answers in answer_scores.score_answer
    an agent that says it could not find 12 is right when the answer is 12
    - is_refusal(answer) and (not is_refusal(metadata['answer']))
    + False
agents_units_upside_down in quantities.in_unit
    an agent that answers in another unit than the task's is wrong
    - quantity.value * stated[1] / expected[1]
    + quantity.value * expected[1] / stated[1]
unknown_programs_fail in code_bench.pass_at
    programs that nobody could grade count as failed
    - column(rows_of_task, 'success')
    + np.nan_to_num(column(rows_of_task, 'success'))
contaminated_tasks_kept in TrajectoryMaker.row_of
    attempts at test tasks become training data
    - task.prompt in self.heldout
    + task.prompt in ()
longest_attempt_recorded in TrajectoryMaker._row
    imitation learns detours
    - lambda attempt: (not attempt.finished, attempt.turns)
    + lambda attempt: (not attempt.finished, -attempt.turns)
truncated_attempts_succeed in sampled_attempt
    attempts that were cut off are imitated
    - success if episode.finished or success is None else 0.0
    + success
""")
