"""Metrics that rlhf_lab/algorithms/reward_models/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

REWARD_MODEL = (
    Metric(
        "auroc",
        "probability that a held-out chosen reply scores above a rejected one, of any prompt, ties half; accuracy "
        "compares the two replies of a pair, which is what the model is trained on",
        title="AUC",
        better="higher",
        phrase="AUC on human pairs",
    ),
    Metric(
        "agent_accuracy",
        "share of held-out tasks that an agent does right when the reward model chooses one of its attempts at each",
        title="agent accuracy",
        better="higher",
    ),
    Metric("agent_accuracy/one", "the same of an attempt that is chosen at random", title="accuracy of one attempt"),
    Metric("agent_accuracy/any", "share of these tasks that some attempt does right: what a perfect choice gives"),
    Metric("agent_accuracy/shortest", "the same when the attempt with the fewest words is chosen"),
    Metric("attempts/tasks", "held-out tasks whose attempts were scored"),
    Metric(
        "accuracy/attempts",
        "share of pairs of a right and a wrong attempt at one held-out task that are ranked so, ties half",
        title="accuracy on attempts",
        better="higher",
        phrase="accuracy on pairs of attempts",
    ),
    Metric(
        "auroc/attempts",
        "probability that a right attempt scores above a wrong one, at any two held-out tasks, ties half",
        title="AUC on attempts",
        better="higher",
        phrase="AUC on attempts",
    ),
    Metric(
        "accuracy/on_policy",
        "accuracy on held-out pairs sampled from the policy and labelled by the annotator",
        title="accuracy on policy",
        better="higher",
    ),
    Metric(
        "accuracy/multi_turn",
        "accuracy on held-out pairs in whose prompt the human speaks more than once",
        title="accuracy, several turns",
        better="higher",
        phrase="accuracy on pairs of several turns",
    ),
    Metric(
        "accuracy/averaged",
        "accuracy of the one model whose weights are the mean of the members' (WARM)",
        title="accuracy, averaged weights",
        better="higher",
    ),
    Metric(
        "disagreement",
        "standard deviation between the members of an ensemble, mean over policy replies, in sd of scores",
    ),
    Metric("length_correlation", "correlation of score and length of policy replies, in words"),
    Metric("confidence_gain/chosen", "score change from an `unsure` to a `sure` ending of held-out chosen replies"),
    Metric("confidence_gain/rejected", "the same of rejected replies"),
    Metric(
        "row_tokens",
        "tokens of a held-out prompt and reply, as read",
        title="row tokens",
        phrase="length of a row in tokens",
    ),
    Metric(
        "turns",
        "turns of the human in a held-out prompt, as read, before rows are cut to max_length",
        title="turns read",
    ),
    Metric(
        "truncated",
        "share of held-out rows that were cut to max_length",
        title="truncated",
        better="lower",
        phrase="share of rows that are cut",
    ),
)
"""reward_model.py"""

RUBRIC = (
    Metric(
        "mse",
        "mean squared error of the score, on the target's scale 0…1, on held-out graded replies",
        title="squared error",
        better="lower",
    ),
    Metric("mse/<attribute>", "the same of the output for an attribute", better="lower"),
    Metric(
        "correlation",
        "correlation of the score with the target on held-out graded replies",
        title="correlation with grades",
        better="higher",
    ),
    Metric(
        "correlation/<attribute>",
        "correlation of an attribute's grade with its output; of a scalar model, with the score",
        better="higher",
    ),
    Metric(
        "correlation/truth",
        "correlation of the score with the target of the true grades, where they are known",
        title="correlation with true grades",
        better="higher",
    ),
    Metric(
        "judge_correlation",
        "the same of the judge's own grades: what the labels are worth",
        title="judge's correlation",
    ),
    Metric("heldout_mse", "mse along training", better="lower"),
)
"""rubric_rm.py"""

STEP_REWARD = (
    Metric("accuracy", "share of judged positions whose probability is on the label's side of ½"),
    Metric(
        "accuracy/planted",
        "the same on held-out demonstrations and versions of them with a planted mistake; a process reward model is "
        "judged at every step, an outcome reward model at the last token",
        better="higher",
    ),
    Metric(
        "auroc/planted",
        "probability that a right position of those scores above a wrong one, ties half",
        better="higher",
    ),
    Metric("brier/planted", "mean squared difference of probability and label there", better="lower"),
    Metric("positive", "mean label of what was trained on"),
    Metric("positions", "labels trained on"),
    Metric("trajectories", "solutions trained on"),
    Metric("cut", "steps beyond max_length, which have no label"),
)
"""step_reward.py"""

GRADE = (
    Metric("replies", "replies that a judge was asked to grade"),
    Metric("pairs/graded", "pairs both of whose replies a judge was asked to grade"),
    Metric("grade/<criterion>", "mean grade of the replies of the pairs, on the scale of the rubric"),
    Metric("unscored", "share of replies whose grade the judge refused, cut off or did not put in the form asked for"),
    Metric("unscored/<reason>", "number of such replies: refused, truncated, invalid"),
    Metric(
        "label_agreement",
        "share of pairs whose chosen reply has the higher mean grade, ties half",
        title="grades agree with labels",
        better="higher",
        phrase="share of pairs that the grades rank as labelled",
    ),
)
"""grade.py"""
