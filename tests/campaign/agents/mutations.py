"""Faults of agents: their tools, their benchmarks, and what is counted of their attempts."""

from __future__ import annotations

from anchors import Mutant

MUTANTS = (
    Mutant(
        "busy_tool_without_luck_of_its_own",
        "flaky.run",
        "f'{seed}/{tool.name}/{calls}'",
        "f'{seed}/{tool.name}'",
        "a busy tool is busy for ever, so that calling it again never helps",
    ),
    Mutant(
        "matched_calls_not_one_to_one",
        "call_scores._score",
        "round(best_pairing(same_ME))",
        "round(float(same_ME.max(axis=1, initial=0.0).sum())) if same_ME.size else 0",
        "the same call made ten times is ten right calls",
    ),
    Mutant(
        "retries_count_against_an_agent",
        "without_retries",
        "key in worked_later",
        "key not in worked_later",
        "calls that a busy tool made necessary count, and calls that never worked do not",
    ),
    Mutant(
        "gaia_number_keeps_its_commas",
        "DROPPED_FROM_NUMBERS",
        "str.maketrans('', '', '$%,')",
        "str.maketrans('', '', '$%')",
        "an answer of 1,000 is wrong where 1000 is right",
    ),
    Mutant(
        "gaia_list_prefix_is_right",
        "official._same_list",
        "len(answers) != len(golds)",
        "len(answers) < len(golds)",
        "a list with more elements than the right one is right",
    ),
    Mutant(
        "gaia_list_elements_without_punctuation",
        "official._same_element",
        "_plain(answer) == _plain(gold)",
        "_plain(answer).translate(PUNCTUATION) == _plain(gold).translate(PUNCTUATION)",
        "scores are above those of the leaderboard",
    ),
    Mutant(
        "redirects_unchecked",
        "_CheckedRedirect.redirect_request",
        "_check_address(newurl, self._allow_private)",
        "newurl",
        "a page of the web leads an agent to services of this machine",
    ),
    Mutant(
        "attempts_known_without_facts",
        "question_content",
        "dict(question.task.facts)",
        "{}",
        "a resumed benchmark takes attempts whose right answer has changed since",
    ),
    Mutant(
        "attempts_known_without_draw",
        "plan_attempts",
        "{'task': question_content(question, tools), 'draw': draw, 'seed': seed}",
        "{'task': question_content(question, tools), 'seed': seed}",
        "several attempts at a task are one attempt counted several times",
    ),
    Mutant(
        "repeated_words_once",
        "token_f1",
        "(answered & wanted).total()",
        "len(answered & wanted)",
        "answers with repeated words score too low",
    ),
    Mutant(
        "refusals_are_answers",
        "answer_scores.score_answer",
        "is_refusal(answer) and (not is_refusal(facts['answer']))",
        "False",
        "an agent that says it could not find 12 is right when the answer is 12",
    ),
    Mutant(
        "agents_units_upside_down",
        "quantities.in_unit",
        "quantity.value * stated[1] / wanted[1]",
        "quantity.value * wanted[1] / stated[1]",
        "an agent that answers in another unit than the task's is wrong",
    ),
    Mutant(
        "unknown_programs_fail",
        "code_bench.pass_at",
        "column(rows_of_task, 'success')",
        "np.nan_to_num(column(rows_of_task, 'success'))",
        "programs that nobody could grade count as failed",
    ),
    Mutant(
        "contaminated_tasks_kept",
        "TrajectoryMaker.row_of",
        "task.prompt in self.heldout",
        "task.prompt in ()",
        "attempts at test tasks become training data",
    ),
    Mutant(
        "longest_attempt_recorded",
        "TrajectoryMaker._row",
        "lambda attempt: (not attempt.finished, attempt.turns)",
        "lambda attempt: (not attempt.finished, -attempt.turns)",
        "imitation learns detours",
    ),
    Mutant(
        "truncated_attempts_succeed",
        "sampled_attempt",
        "success if episode.finished or success is None else 0.0",
        "success",
        "attempts that were cut off are imitated",
    ),
)
