"""Metrics that rlhf_lab/training/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

LOOP = (
    Metric("loss", "mean loss of the logged steps, per token (sft), per pair or as the algorithm weighs its tokens"),
    Metric("lr_scale", "share of the peak learning rate"),
    Metric("grad_norm", "gradient norm of the model before clipping, last step"),
    Metric("grad_norm/<part>", "the same for another trained part: the critic, a member, a fold"),
    Metric("step", "optimiser step or iteration that the row is of, from 0"),
    Metric("time", "seconds since the stage began, earlier attempts at it not counted"),
    Metric("units", "tokens or pairs trained on in the logged steps"),
)
"""run.py"""

LOOP_COST = (
    Metric(
        "memory/parameters",
        "MiB of the trained modules' parameters that one process holds",
        title="parameters",
        unit="MiB",
        better="lower",
        phrase="memory of the parameters",
    ),
    Metric(
        "memory/gradients",
        "MiB of their gradients after a backward pass",
        title="gradients",
        unit="MiB",
        better="lower",
    ),
    Metric(
        "memory/optimizer",
        "MiB of their optimiser state after a step",
        title="optimiser",
        unit="MiB",
        better="lower",
        phrase="memory of the optimiser",
    ),
    Metric(
        "memory/peak",
        "MiB that training took at most: allocated on a GPU; resident beyond what the process held before it built "
        "a model on a CPU",
        title="peak",
        unit="MiB",
        better="lower",
    ),
    Metric(
        "step_seconds",
        "median wall time of a step, samples included; logging, evaluations and checkpoints not",
        title="step",
        unit="s",
        better="lower",
    ),
)
"""run.py"""

DATA = (
    Metric("data/<split>/rows", "rows read"),
    Metric("data/<split>/kept", "of these, rows that are used"),
    Metric("data/<split>/dropped/<reason>", "rows left out for a reason"),
    Metric("data/<source>/<split>/rows", "rows of one of several sources"),
    Metric("data/<source>/<split>/kept", "of these, rows that are used"),
    Metric("data/<source>/<split>/dropped/<reason>", "rows of one of several sources that are left out for a reason"),
    Metric("encoding/<event>", "rows to which it happened while text became tokens: cut, without an EOS, …"),
    Metric("rows", "rows that are trained on"),
    Metric("steps", "optimiser steps"),
    Metric("pairs/<source>", "pairs that are trained on, by where they come from"),
)
"""start.py, and the algorithms themselves"""

SIZE = (
    Metric("parameters", "of the policy, frozen ones included"),
    Metric(
        "parameters/trained",
        "parameters that training changes",
        title="trained parameters",
        phrase="number of trained parameters",
    ),
    Metric(
        "checkpoint_mib",
        "what restores the policy: all its weights, or the adapter on its base",
        title="checkpoint",
        unit="MiB",
        better="lower",
    ),
    Metric(
        "peak_gib",
        "most memory the stage held: resident set on a CPU, allocated on a GPU",
        title="peak memory",
        unit="GiB",
        better="lower",
    ),
)
"""start.py and totals.py"""
