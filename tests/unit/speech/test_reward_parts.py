"""Figures of what a reward is made of."""

import json

import pytest
from synthetic_runs import write_run

from rlhf_lab.packs.speech.report import acoustics
from rlhf_lab.reports.reward.card import criteria
from rlhf_lab.results.rundir import read_run
from rlhf_lab.statistics.estimates import Estimate


@pytest.fixture
def run_with(tmp_path):
    def make(**metrics):
        directory = write_run(tmp_path, policies=())
        result = json.loads((directory / "result.json").read_text())
        (directory / "result.json").write_text(json.dumps(result | {"metrics": metrics}))
        return read_run(directory)

    return make


def estimate(mean):
    return Estimate(mean, mean - 0.1, mean + 0.1, 200, 100).to_dict()


def test_every_group_of_numbers_is_a_figure(run_with):
    run = run_with(
        **{f"feature_spearman/{name}": estimate(0.2) for name in ("hnr", "pitch_sd")},
        **{f"phone_error/{side}": estimate(0.1) for side in ("chosen", "rejected", "other")},
        accuracy=estimate(0.6),
    )
    section = acoustics(run)
    assert section is not None and criteria(run) is None
    first, second = section.figures
    assert first.title == "Rank correlation of features with the truth, held-out clips"
    assert second.title == "Phone errors of the recogniser, held-out clips"


def test_a_run_without_parts_has_none(run_with):
    run = run_with(accuracy=estimate(0.6))
    assert acoustics(run) is None and criteria(run) is None
