"""A study's report shows what its policies are like: lights, rewards, length and replies."""

from __future__ import annotations

import json
import shutil

from synthetic_runs import edit, edit_rows

from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.study.policies import policies
from rlhf_lab.reports.study.policy_view import policy_view
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.results.wording import compact
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.replicates import level_mean


def test_lights_are_counted_over_the_jobs_of_a_level(make_study):
    study = read_study(make_study(seeds=3))
    view = policy_view(study)
    lights = dict(view["lights"]["rows"])
    assert list(lights) == ["buffer current", "buffer mixed", "buffer stale"]
    cells = dict(zip(view["lights"]["columns"], lights["buffer current"], strict=True))
    assert cells["length"] == ("watch", "! 3 of 3")  # tokens of the synthetic runs grow by 24
    assert cells["garbling"] == ("good", "✓ 0 of 3")
    section = policies(StudyResults(study))
    assert section.values["lights"] == view["lights"]
    assert [row[:2] for row in section.table.rows] == [(level, 3) for level in lights]


def test_without_gold_over_optimisation_is_unknown(make_study):
    view = policy_view(read_study(make_study(seeds=2, gold=False)))
    position = view["lights"]["columns"].index("over-optimisation")
    assert {cells[position] for _, cells in view["lights"]["rows"]} == {("unknown", "unknown")}
    assert [name for name, _ in view["last"]["columns"]][:3] == ["proxy reward", "KL, nats", "tokens"]


def test_jobs_of_a_study_without_seeds_are_no_repetitions(make_study):
    """Two learning rates of a level have the command's seed, so they give no interval over seeds."""
    directory = make_study(seeds=2)
    plan = json.loads((directory / "study.json").read_text())
    for job in plan["jobs"]:
        job["overrides"]["algorithm.lr"] = (0.1, 0.3)[job["overrides"].pop("seed")]
        edit(directory / f"jobs/{job['index']}/run/manifest.json", seed=7)
    (directory / "study.json").write_text(json.dumps(plan))
    study = read_study(directory)
    assert set(study.policies["seed"]) == {7}
    _, count, (gold, *_) = policy_view(study)["last"]["rows"][0]
    assert count == 2 and "±" not in gold
    assert gold == compact(level_mean(study, "gold", "current"))


def with_prompts_of_their_own(directory):
    """Give every seed of a study prompts of its own, which have the same ids."""
    plan = json.loads((directory / "study.json").read_text())
    for job in plan["jobs"]:
        seed = job["seed"] = job["overrides"]["seed"]
        run = directory / f"jobs/{job['index']}/run"
        edit_rows(run, lambda row, seed=seed: {"prompt": f"{row['prompt']} (seed {seed})"})
    (directory / "study.json").write_text(json.dumps(plan))
    return directory


def test_replies_side_by_side_are_to_the_same_prompt(make_study):
    """The first job of the first level failed, so seed 1 is the first one that all levels have."""
    directory = with_prompts_of_their_own(make_study(seeds=2, failed=(0,)))
    samples = policy_view(read_study(directory))["samples"]
    assert samples["policies"] == ["start: SFT", "buffer current", "buffer mixed", "buffer stale"]
    assert {prompt["text"][-8:] for prompt in samples["prompts"]} == {"(seed 1)"}
    assert all(all(prompt["replies"]) for prompt in samples["prompts"])
    # without a common seed, responses to other prompts are no responses to this one
    shutil.rmtree(directory)
    apart = with_prompts_of_their_own(make_study(seeds=2, failed=(0, 3, 5)))
    for prompt in policy_view(read_study(apart))["samples"]["prompts"]:
        answered = [bool(replies) for replies in prompt["replies"]]
        of_seed_1 = prompt["text"].endswith("(seed 1)")
        assert answered == ([True, True, False, False] if of_seed_1 else [False, False, True, True])


def test_a_study_without_replies_or_with_one_job_has_a_report(make_study):
    directory = make_study(seeds=1, missing=(1, 2))
    page = write_report(directory).read_text()
    assert 'id="samples"' in page
    for file in directory.glob("jobs/*/run/evaluation.jsonl"):
        file.unlink()
    assert 'id="samples"' not in write_report(directory).read_text()
