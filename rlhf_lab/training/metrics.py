"""Metrics that rlhf_lab/training/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

LOOP = (
    Metric("loss", "mean loss of the logged steps, per token (sft), per pair or as the algorithm weighs its tokens"),
    Metric("lr_scale", "fraction of the peak learning rate"),
    Metric("grad_norm", "gradient norm of the model before clipping, last step"),
    Metric("grad_norm/<part>", "gradient norm of another trained part before clipping: the critic, a member, a fold"),
    Metric("step", "optimiser step or iteration of the row, from 0"),
    Metric("time", "seconds since the start of the stage, without earlier attempts"),
    Metric("units", "tokens or pairs trained on in the logged steps"),
)
"""run.py"""

LOOP_COST = (
    Metric(
        "memory/parameters",
        "MiB of the trained modules' parameters in one process",
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
        "maximum MiB during training: allocated on a GPU; on a CPU, resident memory beyond that of the process before "
        "it built a model",
        title="peak",
        unit="MiB",
        better="lower",
    ),
    Metric(
        "step_seconds",
        "mean wall time per update, including samples, excluding logging, evaluations and checkpoints",
        title="step",
        unit="s",
        better="lower",
    ),
)
"""run.py"""

ENGINE = (
    Metric(
        "trl/<name>", "metric that TRL logs, under its own name; those with an equivalent here are logged under both"
    ),
)
"""algorithms/trl/trainers.py, in addition to the metrics of the native engine"""

DATA = (
    Metric("data/<split>/rows", "rows read"),
    Metric("data/<split>/kept", "rows that are used, out of those read"),
    Metric("data/<split>/dropped/<reason>", "rows excluded for this reason"),
    Metric("data/<source>/<split>/rows", "rows of one of several sources"),
    Metric("data/<source>/<split>/kept", "rows of one of several sources that are used"),
    Metric("data/<source>/<split>/dropped/<reason>", "rows of one of several sources excluded for this reason"),
    Metric("encoding/<event>", "rows with this event during tokenisation: cut, without an EOS, …"),
    Metric("rows", "training rows"),
    Metric("steps", "optimiser steps"),
    Metric("pairs/<source>", "training pairs by source"),
)
"""start.py and the algorithms"""

SIZE = (
    Metric("parameters", "parameters of the policy, including frozen ones"),
    Metric(
        "parameters/trained",
        "parameters that training changes",
        title="trained parameters",
        phrase="number of trained parameters",
    ),
    Metric(
        "checkpoint_mib",
        "size of what restores the policy: all weights, or the adapter on its base",
        title="checkpoint",
        unit="MiB",
        better="lower",
    ),
    Metric(
        "peak_gib",
        "maximum memory of the stage: resident set on a CPU, allocated on a GPU",
        title="peak memory",
        unit="GiB",
        better="lower",
    ),
)
"""start.py and totals.py"""
