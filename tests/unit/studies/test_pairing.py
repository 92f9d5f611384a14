"""Jobs are compared with the jobs that agree in everything but what is compared."""

from __future__ import annotations

import pandas as pd

from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.pairing import paired_jobs, partners, seeds


def test_partners_agree_in_all_keys_in_the_order_of_the_first():
    a = pd.DataFrame({"seed": [2, 0, 1], "beta": [0.1, 0.1, 0.1], "gold": [12.0, 10.0, 11.0]})
    b = pd.DataFrame({"seed": [0, 1, 2, 2], "beta": [0.1, 0.3, 0.1, 0.1], "gold": [0.0, 1.0, 2.0, 3.0]})
    of_a, of_b = partners(a, b, ["seed", "beta"])
    assert of_a["gold"].tolist() == [12.0, 12.0, 10.0]  # seed 2 has two partners, seed 1 none
    assert of_b["gold"].tolist() == [2.0, 3.0, 0.0]


def test_jobs_without_a_seed_share_one():
    assert len(set(seeds(pd.DataFrame({"gold": [1.0, 2.0]})))) == 1
    assert seeds(pd.DataFrame({"seed": [3, 4]})).tolist() == ["3", "4"]


def test_a_level_is_paired_with_the_baseline_by_seed(make_study):
    study = read_study(make_study(seeds=3, failed=(1,)))  # job 1 is seed 1 of the baseline
    pairs = paired_jobs(study, "gold", "mixed")
    assert pairs["seed"].tolist() == ["0", "2"]
    completed = study.completed.set_index("index")["gold"]
    assert pairs["a"].tolist() == completed[pairs["index_a"]].tolist()
    assert pairs["b"].tolist() == completed[pairs["index_b"]].tolist()
    assert pairs["index_a"].tolist() == [3, 5] and pairs["index_b"].tolist() == [0, 2]
    against = paired_jobs(study, "gold", "mixed", versus="stale")
    assert against["index_b"].tolist() == [6, 7, 8]
