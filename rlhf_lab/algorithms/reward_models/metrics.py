"""Metrics that rlhf_lab/algorithms/reward_models/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

REWARD_MODEL = (
    Metric(
        "auroc",
        "probability that a held-out chosen response scores above a rejected one of any prompt, ties count ½; accuracy "
        "compares the two responses of one pair, which is the training objective",
        title="AUC",
        better="higher",
        phrase="AUC on human pairs",
    ),
    Metric(
        "agent_accuracy",
        "fraction of held-out tasks that an agent solves if the reward model chooses one of its attempts at each",
        title="agent accuracy",
        better="higher",
    ),
    Metric("agent_accuracy/one", "fraction of these tasks solved by a random attempt", title="accuracy of one attempt"),
    Metric("agent_accuracy/any", "fraction of these tasks that at least one attempt solves: the upper bound"),
    Metric("agent_accuracy/shortest", "fraction of these tasks solved by the attempt with the smallest word count"),
    Metric("attempts/tasks", "held-out tasks whose attempts were scored"),
    Metric(
        "accuracy/attempts",
        "fraction of correct–wrong pairs of attempts at one held-out task ranked correctly, ties count ½",
        title="accuracy on attempts",
        better="higher",
        phrase="accuracy on pairs of attempts",
    ),
    Metric(
        "auroc/attempts",
        "probability that a correct attempt scores above a wrong one, over all held-out tasks, ties count ½",
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
        "accuracy on held-out pairs whose prompt has several human turns",
        title="accuracy, several turns",
        better="higher",
        phrase="accuracy on pairs of several turns",
    ),
    Metric(
        "accuracy/averaged",
        "accuracy of a single model with the mean of the members' weights (WARM)",
        title="accuracy, averaged weights",
        better="higher",
    ),
    Metric(
        "disagreement",
        "standard deviation between the members of an ensemble, mean over policy responses, in sd of scores",
    ),
    Metric("length_correlation", "correlation of score and length of policy responses, in words"),
    Metric("confidence_gain/chosen", "score change from an `unsure` to a `sure` ending of held-out chosen responses"),
    Metric(
        "confidence_gain/rejected", "score change from an `unsure` to a `sure` ending of held-out rejected responses"
    ),
    Metric(
        "row_tokens",
        "tokens of a held-out prompt and response, as read by the model",
        title="row tokens",
        phrase="length of a row in tokens",
    ),
    Metric(
        "turns",
        "human turns in a held-out prompt, as read by the model, before truncation to max_length",
        title="turns read",
    ),
    Metric(
        "truncated",
        "fraction of held-out rows truncated to max_length",
        title="truncated",
        better="lower",
        phrase="share of rows that are cut",
    ),
)
"""reward_model.py"""

RUBRIC = (
    Metric(
        "mse",
        "mean squared error of the score, on the target's scale 0…1, on held-out graded responses",
        title="squared error",
        better="lower",
    ),
    Metric("mse/<attribute>", "mean squared error of the output for an attribute", better="lower"),
    Metric(
        "correlation",
        "correlation of the score with the target on held-out graded responses",
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
        "correlation of the score with the target of the true grades, if known",
        title="correlation with true grades",
        better="higher",
    ),
    Metric(
        "judge_correlation",
        "correlation of the judge's grades with the true grades: the quality of the labels",
        title="judge's correlation",
    ),
    Metric("heldout_mse", "mse during training", better="lower"),
)
"""rubric_rm.py"""

STEP_REWARD = (
    Metric("accuracy", "fraction of judged positions whose probability is on the same side of ½ as the label"),
    Metric(
        "accuracy/planted",
        "accuracy on held-out demonstrations and on versions of them with a planted error; a process reward model is "
        "judged at every step, an outcome reward model at the last token",
        better="higher",
    ),
    Metric(
        "auroc/planted",
        "probability that a correct position of those solutions scores above a wrong one, ties count ½",
        better="higher",
    ),
    Metric("brier/planted", "mean squared difference of probability and label on those solutions", better="lower"),
    Metric("positive", "mean training label"),
    Metric("positions", "number of training labels"),
    Metric("trajectories", "number of training solutions"),
    Metric("cut", "steps beyond max_length, which have no label"),
    Metric(
        "consensus/kept",
        "fraction of solutions on whose first wrong step both sources of labels agree",
        title="solutions kept",
    ),
    Metric(
        "consensus/right_before",
        "fraction of all solutions whose completions locate the first wrong step where the world does",
        title="right before the filter",
        better="higher",
    ),
    Metric(
        "consensus/right",
        "the same fraction of the solutions that were kept",
        title="right after the filter",
        better="higher",
    ),
)
"""step_reward.py"""

GRADE = (
    Metric("replies", "responses sent to the judge"),
    Metric("pairs/graded", "pairs whose responses were both sent to the judge"),
    Metric("grade/<criterion>", "mean grade of the responses of the pairs, on the scale of the rubric"),
    Metric(
        "unscored", "fraction of responses without a grade because the judge refused, was truncated or broke the format"
    ),
    Metric("unscored/<reason>", "number of such responses: refused, truncated, invalid"),
    Metric(
        "label_agreement",
        "fraction of pairs whose chosen response has the higher mean grade, ties count ½",
        title="grades agree with labels",
        better="higher",
        phrase="share of pairs that the grades rank as labelled",
    ),
)
"""grade.py"""


CRITERIA_REWARD = (
    Metric("pairs", "labelled pairs used to construct the reward"),
    Metric(
        "log_loss",
        "mean −log of the probability that the reward gives the label of a held-out pair, nats; ln 2 is a coin toss",
        title="log loss",
        better="lower",
    ),
    Metric("slope", "log-odds of a preference per point of the grade"),
    Metric("criteria_kept", "criteria with a weight", title="criteria kept"),
    Metric("weight/<criterion>", "weight of a standardised criterion"),
    Metric(
        "agreement/<criterion>", "Spearman's ρ of a criterion's difference with which response won, on validation pairs"
    ),
)
"""criteria_reward.py"""
