"""A recipe run from Python, and its reward model opened again: the same numbers as the lab's own files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text
from support import SMALL_WORLD

import rlhf_lab
from rlhf_lab import load_reward, notebook, run
from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError

SMALL: dict[str, Any] = {
    "model.hidden": 16,
    "model.layers": 1,
    "model.heads": 2,
    "algorithm.epochs": 1,
    "stages.sft.algorithm.epochs": 1,
    "stages.reward_model.algorithm.epochs": 1,
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def result(outputs) -> Any:
    return run("dpo", *SMALL_WORLD, model="tiny", outputs=outputs, quiet=True, **SMALL, **{"algorithm.beta": 0.2})


@pytest.fixture(scope="module")
def reward_folder(outputs, result) -> Path:
    return next((outputs / "runs").glob("reward_model-*"))


def test_a_run_comes_back_as_data_frames(result):
    written = json.loads((result.directory / "result.json").read_text())
    policy = written["policies"][-1]
    row = result.policies.loc[policy["name"]]
    for key, column in (("mean", "proxy"), ("low", "proxy/low"), ("high", "proxy/high"), ("n", "proxy/n")):
        assert row[column] == pytest.approx(policy["metrics"]["proxy"][key])
    assert result.metrics["parameters"] == written["metrics"]["parameters"]
    assert result.metrics["seconds"] == written["seconds"]
    assert len(result.steps) == len((result.directory / "metrics.jsonl").read_text().splitlines())
    assert len(result.samples) == 24 and {"prompt", "response", "reward/bt"} <= set(result.samples.columns)
    parameters = result.estimates.loc["parameters"]
    assert parameters["mean"] == written["metrics"]["parameters"] and np.isnan(parameters["low"])
    assert result.report.is_file()
    assert "beta: 0.2" in (result.directory / "config.yaml").read_text()


def test_a_notebook_shows_the_answer_and_the_table(result):
    page = result._repr_html_()
    assert "One seed, so training noise is not in the interval" in page
    assert all(name in page for name in result.policies.index) and "KL (nats)" in page


def test_what_a_notebook_shows_is_escaped():
    page = notebook._as_html([Text("<script>alert(1)</script> & more")])
    assert "<script>" not in page and "&lt;script&gt;" in page and "&amp; more" in page


def test_a_run_keeps_what_the_console_printed(result, reward_folder):
    log = (result.directory / "log.txt").read_text()
    assert "build  dpo" in log and "stage 3 of 3: dpo" in log and "KL (nats)" in log
    assert "\x1b" not in log and "stage 2" not in (reward_folder / "log.txt").read_text()
    assert "log.txt" not in (result.directory / "SHA256SUMS").read_text()


@pytest.mark.slow
def test_a_sweep_comes_back_as_a_study_and_leaves_the_process_alone(outputs, result, capfd):
    before = (list(sys.argv), dict(os.environ), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    values = {**SMALL, "hydra/launcher": "basic"}
    study = run(
        "dpo", *SMALL_WORLD, model="tiny", outputs=outputs, quiet=True, sweep={"algorithm.beta": [0.2, 0.5]}, **values
    )
    assert (
        list(sys.argv),
        dict(os.environ),
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
    ) == before
    assert capfd.readouterr() == ("", "")
    assert list(study.jobs["status"]) == ["completed"] * 2
    assert list(study.jobs["algorithm.beta"]) == [0.2, 0.5]
    assert study.runs[0].directory == result.directory
    assert set(study.table["algorithm.beta"]) == {"0.2", "0.5"} and study.report.is_file()
    page = study._repr_html_()
    assert page.startswith("<pre") and "beta 0.2" in page and "intervals are 95 %" in page
    assert "<" not in page.replace("<pre", "").replace("</pre>", "").replace("<span", "").replace("</span>", "")


def test_what_is_wrong_is_raised(outputs):
    with pytest.raises(ConfigError, match="did you mean beta"):
        run("dpo", outputs=outputs, **{"algorithm.betta": 1})
    with pytest.raises(ConfigError, match=r"data\.chosen=\[.a.\] is a list, expected text"):
        run("dpo", data="pairs", outputs=outputs, **{"data.path": "x y.csv", "data.chosen": ("a",)})


def test_a_saved_reward_model_gives_the_lab_s_own_scores(result, reward_folder, tmp_path):
    prompts, responses = list(result.samples["prompt"]), list(result.samples["response"])
    expected = result.samples["reward/bt"].to_numpy()
    assert np.std(expected) > 0.01
    reward = load_reward(reward_folder)
    np.testing.assert_allclose(reward(prompts, responses), expected, atol=1e-5)
    copied = shutil.copytree(reward_folder / "model", tmp_path / "copied")
    np.testing.assert_allclose(load_reward(copied, batch_tokens=64)(prompts, responses), expected, atol=1e-5)
    simple = prompts[0].removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
    same = reward([simple, [{"role": "user", "content": simple}], prompts[0]], [responses[0]] * 3)
    assert np.ptp(same) < 1e-6
    assert reward([], []).shape == (0,)


def test_plain_transformers_give_the_same_scores(result, reward_folder):
    """The lines of docs/rewards.md, as they stand there."""
    text = (Path(rlhf_lab.__file__).parents[1] / "docs" / "rewards.md").read_text()
    code = text.split("<!-- plain transformers -->\n```python\n")[1].split("```")[0]
    rows = result.samples.to_dict("records")[:6]
    assert len(rows) == 6
    for row in rows:
        names: dict[str, Any] = {"prompt": row["prompt"], "response": row["response"]}
        exec(code.replace("outputs/runs/reward_model-…", str(reward_folder)), names)
        assert names["score"] == pytest.approx(row["reward/bt"], abs=1e-5)


def test_what_is_no_reward_model_says_so(result, reward_folder):
    with pytest.raises(ArtifactError, match="contains no reward model of rlhf_lab"):
        load_reward(result.directory)
    with pytest.raises(ConfigError, match="did you mean ensemble"):
        load_reward(reward_folder, ensembel="worst")
    with pytest.raises(ConfigError, match="has one; train it with"):
        load_reward(reward_folder, ensemble="worst")
    with pytest.raises(DataError, match="two lists of the same length"):
        load_reward(reward_folder)("a prompt", ["a"])


def test_a_sweep_of_one_value_is_a_study(monkeypatch, tmp_path):
    monkeypatch.setattr(notebook.main, "run_command", lambda arguments: 0)
    study = run("sft", outputs=tmp_path, sweep={"seed": [3]})
    assert isinstance(study, notebook.StudyResult)
    assert study.directory.parent == tmp_path / "studies"
    with pytest.raises(ConfigError, match="sweep: seed has no values"):
        run("sft", outputs=tmp_path, sweep={"seed": []})


def test_arrays_are_lists_and_their_scalars_numbers():
    values = {"a": np.array([1, 2]), "b": (np.float64(0.5), np.True_), "c": [np.array([0.25])]}
    assert notebook._to_plain(values) == {"a": [1, 2], "b": [0.5, True], "c": [[0.25]]}
