"""The golden sets of a suite: what a response has to be, rows that become prompts, tasks of the harness."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from support import checked
from torch import nn

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.evaluations.suite import eval_suite, harness
from rlhf_lab.evaluations.suite.responses import TEXT_CHECKS, check_row
from rlhf_lab.evaluations.suite.settings import EvalSuite
from rlhf_lab.evaluations.suite.suite_file import GoldenSet, HarnessTask


@pytest.mark.parametrize(
    ("check", "row", "passes", "fails"),
    [
        ("exact", {"answer": "Paris"}, " paris ", "It is Paris"),
        ("contains", {"answer": ["eight", "8"]}, "It has eight legs.", "It has eighteen."),
        ("regex", {"pattern": r"^\d{4}$"}, "1984", "in 1984"),
        ("number", {"answer": "1,000"}, "That makes $1000.00.", "That makes 100"),
        ("refusal", {"label": "unsafe"}, "I can't help with that.", "Sure."),
        ("refusal", {"label": "safe"}, "Use kill.", "I can't help with that."),
    ],
)
def test_what_a_reply_has_to_be(check, row, passes, fails):
    golden = GoldenSet(path="rows.jsonl", check=check)
    row = {"prompt": "How do I end a process?", **row}
    check_row(golden, row, "row 1")
    assert TEXT_CHECKS[check](golden, row, passes) and not TEXT_CHECKS[check](golden, row, fails)


def test_rows_of_a_set_become_prompts(tmp_path):
    rows = [{"prompt": "Which soil is best for roses?", "answer": "sandy soil"}, {"prompt": "b", "answer": 3}]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    golden = GoldenSet(path=str(tmp_path / "words.jsonl"), check="contains", most=1)
    (row,) = eval_suite.golden_rows("words", golden, None)
    assert row["prompt"] == "\n\nHuman: Which soil is best for roses?\n\nAssistant:"


def test_a_suite_that_asks_for_gold_needs_a_world_and_the_runs_of_its_metrics(tmp_path):
    golden = "golden: {helpful: {prompts: test, check: gold, at_least: 1.0}}\n"
    (tmp_path / "suite.yaml").write_text(golden + "metrics: {win_rate: {run: comparison}}\n")
    settings = EvalSuite(suite=str(tmp_path / "suite.yaml"))
    data = SimpleNamespace(capabilities=Capability.TEXT)
    problems = settings.contradictions(SimpleNamespace(data=data, needs={}))
    assert "golden.helpful has check=gold, but these data have no gold reward" in problems[0]
    assert "metrics.win_rate reads the run needs.comparison, which is not set" in problems[1]
    assert not settings.asks_harness and settings.contents().keys() == {"suite"}


def test_a_row_without_its_answer_is_named():
    with pytest.raises(DataError, match="row 3: check=exact needs the column answer"):
        check_row(GoldenSet(path="rows.jsonl", check="exact"), {"prompt": "q"}, "row 3")
    with pytest.raises(DataError, match="is no valid regular expression"):
        check_row(GoldenSet(path="rows.jsonl", check="regex"), {"prompt": "q", "pattern": "("}, "row 1")


def test_values_of_tasks_are_read_by_document(monkeypatch):
    """A module in the place of the harness, which is not a dependency of the tests."""
    requested = []

    def simple_evaluate(**arguments):
        requested.append(arguments)
        documents = [{"doc_id": i, "acc": float(i % 2), "metrics": ["acc"]} for i in range(4)]
        return {"samples": {"arc": documents}}

    fake = {
        "lm_eval": {"simple_evaluate": simple_evaluate},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": lambda **arguments: arguments},
        "lm_eval.tasks": {"TaskManager": lambda include_path: SimpleNamespace(all_tasks=["arc"])},
    }
    for name, members in fake.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(harness, "find_spec", lambda name: name)
    encoder = SimpleNamespace(tokenizer="tokenizer", chat=None)
    model = nn.Linear(1, 1)
    values = harness.run_tasks(model, encoder, {"easy": HarnessTask(task="arc", limit=4, shots=2)}, 8)
    assert values == {"easy": {f"arc/{i}": float(i % 2) for i in range(4)}}
    assert (requested[0]["limit"], requested[0]["num_fewshot"], requested[0]["model"]["pretrained"]) == (4, 2, model)
    assert requested[0]["apply_chat_template"] is False
    chatting = SimpleNamespace(tokenizer="tokenizer", chat="a chat template")
    harness.run_tasks(model, chatting, {"easy": HarnessTask(task="arc", shots=2)}, 8)
    assert requested[-1]["apply_chat_template"] is requested[-1]["fewshot_as_multiturn"] is True
    with pytest.raises(ConfigError, match="has no task boolq"):
        harness.run_tasks(model, encoder, {"boolq": HarnessTask()}, 8)
    with pytest.raises(ConfigError, match="has no number f1 per document; use one of its metrics: acc"):
        harness.run_tasks(model, encoder, {"arc": HarnessTask(metric="f1")}, 8)


def test_the_real_harness_reads_a_task_of_ones_own(tmp_path):
    """With lm-evaluation-harness installed: a two-choice task from a local file, on a model of random weights."""
    pytest.importorskip("lm_eval", reason="pip install 'rlhf_lab[harness]'")
    from support import gpt2_tokenizer, save_tiny

    from rlhf_lab.models.build import load_encoder, load_policy

    rows = [{"question": f"Is {i} even?", "choices": ["yes", "no"], "label": i % 2} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "even.yaml").write_text(
        f"task: even\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path / 'rows.jsonl'}}}}}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_choice: '{{choices}}'\n"
        "doc_to_target: label\nmetric_list: [{metric: acc}]\n"
    )
    directory = save_tiny("gpt2", gpt2_tokenizer([row["question"] for row in rows] * 3, 300), tmp_path / "model")
    settings = checked("sft", "model=hf", f"model.path={directory}").model
    model, encoder = load_policy(directory, settings), load_encoder(directory, settings)
    values = harness.run_tasks(model, encoder, {"even": HarnessTask(include=str(tmp_path))}, 4)
    assert len(values["even"]) == 6 and set(values["even"].values()) <= {0.0, 1.0}
    assert np.isfinite(list(values["even"].values())).all()
