"""inspect itself with the lab's model and sandbox, and on its logs.

Skipped without it; docs/agents/interop.md installs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from support import bpe, save_tiny

pytestmark = pytest.mark.slow
pytest.importorskip("inspect_ai", reason="pip install -c constraints-inspect.txt -e '.[inspect]'")

import torch  # noqa: E402
from agent_runs import small_run  # noqa: E402
from inspect_ai import Task  # noqa: E402
from inspect_ai import eval as evaluate  # noqa: E402
from inspect_ai.analysis import samples_df  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.log import EvalLog, read_eval_log  # noqa: E402
from inspect_ai.model import GenerateConfig, get_model  # noqa: E402
from inspect_ai.scorer import Score, accuracy, includes, scorer  # noqa: E402
from inspect_ai.solver import generate, solver, use_tools  # noqa: E402
from inspect_ai.tool import ToolDef, python  # noqa: E402
from inspect_ai.util import sandbox, store  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from rlhf_lab.core.errors import ConfigError  # noqa: E402
from rlhf_lab.core.tools import function_call  # noqa: E402
from rlhf_lab.packs.agents.inspect import provider  # noqa: E402
from rlhf_lab.packs.agents.inspect.logs import export  # noqa: E402
from rlhf_lab.packs.agents.inspect.sandbox import LEVEL_KEY, LabSandbox, read_settings  # noqa: E402
from rlhf_lab.packs.judging.judges.backends.local import LocalBackend  # noqa: E402

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% for call in m['tool_calls'] %}"
    "{{ \"\\n\" if m['content'] or not loop.first }}<tool_call>\n{\"name\": \"{{ call['function']['name'] }}\", "
    "\"arguments\": {{ call['function']['arguments'] | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QUESTIONS = {"six times seven": ("6*7", "42"), "two to the tenth": ("2**10", "1024"), "ten less three": ("10-3", "7")}


def conversation(question: str) -> list[dict]:
    """Return the conversation that teaches the model to compute with the tool, and to state the result."""
    expression, value = QUESTIONS[question]
    code = f"open('log','w').write('{question}');print({expression})"
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [function_call("python", {"code": code})]},
        {"role": "tool", "content": f"{value}\n"},
        {"role": "assistant", "content": f"It is {value}."},
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A tiny model that knows three conversations by heart."""
    tool = ToolDef(python())
    schema = tool.parameters.model_dump(exclude_none=True)
    function = {"name": tool.name, "description": tool.description, "parameters": schema}
    tools = [{"type": "function", "function": function}]
    conversations = [conversation(question) for question in QUESTIONS]
    texts = [json.dumps(tools), *(json.dumps(messages) for messages in conversations)]
    specials = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    tokenizer = bpe(texts * 3, 700, specials[:2], eos_token="<|im_end|>")
    tokenizer.add_tokens(specials[2:])
    tokenizer.chat_template = TEMPLATE
    directory = save_tiny("llama", tokenizer, tmp_path_factory.mktemp("taught"))
    network = AutoModelForCausalLM.from_pretrained(directory)
    network.config.max_position_embeddings = 1024  # the definition of a tool alone takes 200
    written = [tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) for messages in conversations]
    batches = [torch.tensor([tokenizer(text, add_special_tokens=False).input_ids]) for text in written]
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for _ in range(200):
        loss = sum(network(input_ids=ids, labels=ids).loss for ids in batches)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    network.save_pretrained(directory)
    return directory


@scorer(metrics=[accuracy()])
def left_a_file():
    """A file that a command has written is there for the next command, and for read_file."""

    async def score(state, target):
        read = await sandbox().read_file("log")
        shown = await sandbox().exec(["bash", "-c", "cat log; pwd"])
        is_right = shown.stdout == f"{read}/work/sample\n" and read == state.sample_id
        return Score(value=1.0 if is_right else 0.0, explanation=repr((read, shown)))

    return score


def run(task: Task, tmp_path: Path, **settings) -> EvalLog:
    log = evaluate(task, log_dir=str(tmp_path), display="none", **settings)[0]
    assert log.status == "success", log.error
    return read_eval_log(log.location)


def test_a_task_with_a_tool_runs_on_a_model_of_the_lab_in_its_sandbox(model, tmp_path):
    samples = [Sample(input=question, target=value, id=question) for question, (_, value) in QUESTIONS.items()]
    task = Task(
        dataset=samples,
        solver=[use_tools(python(timeout=30)), generate()],
        scorer=[includes(), left_a_file()],
        sandbox="rlhf_lab",
        config=GenerateConfig(max_tokens=56, temperature=0.0),
    )
    log = run(task, tmp_path, model=f"rlhf_lab/{model}")
    for sample in log.samples:
        _, called, result, text = sample.messages
        assert called.tool_calls[0].function == "python" and result.tool_call_id == called.tool_calls[0].id
        assert result.text.strip() == sample.target and sample.target in text.text
        assert sample.scores["left_a_file"].value == 1.0, sample.scores["left_a_file"].explanation
        assert sample.store[LEVEL_KEY] in ("namespaces+seccomp", "namespaces")
        assert sample.output.stop_reason == "stop" and sample.output.usage.output_tokens > 3
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_the_command_line_finds_model_and_sandbox(model, tmp_path):
    """As in docs/agents/interop.md: nothing but the installed package."""
    (plugin,) = [point for point in entry_points(group="inspect_ai") if point.name == "rlhf_lab"]
    assert plugin.value == "rlhf_lab.packs.agents.inspect.plugin"
    (tmp_path / "settings.yml").write_text("timeout_s: 20\nlevel: rlimits\n")
    (tmp_path / "task.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n"
        "from inspect_ai.solver import generate, use_tools\n"
        "from inspect_ai.tool import python\n"
        "@task\n"
        "def sums():\n"
        "    sample = Sample(input='six times seven', target='42')\n"
        "    return Task(dataset=[sample], solver=[use_tools(python()), generate()], scorer=includes())\n"
    )
    command = [sys.executable, "-m", "inspect_ai", "eval", "task.py", "--model", f"rlhf_lab/{model}"]
    command += ["--sandbox", "rlhf_lab:settings.yml", "--max-tokens", "56", "--log-dir", "logs", "--display", "plain"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "logs").glob("*.eval")
    log = read_eval_log(str(file))
    assert log.results.scores[0].metrics["accuracy"].value == 1.0, done.stdout
    assert log.samples[0].store[LEVEL_KEY] == "rlimits"


@solver
def tries():
    """Solver that tries what a tool or a scorer may do with a sandbox, and records the results."""

    async def solve(state, generate):
        box = sandbox()
        seen = {"given": (await box.exec(["cat", "given/a.txt"])).stdout}
        await box.write_file("data.bin", b"\xff\x00")
        seen["bytes"] = list(await box.read_file("data.bin", text=False))
        attempts = {
            "escape": lambda: box.read_file("../../etc/passwd"),
            "absolute": lambda: box.write_file("/etc/x", "x"),
            "missing": lambda: box.read_file("missing"),
            "folder": lambda: box.read_file("given"),
            "text": lambda: box.read_file("data.bin"),
            "slow": lambda: box.exec(["sleep", "60"], timeout=1),
            "loud": lambda: box.exec(["python3", "-c", "print('x' * 10**6)"]),
            "user": lambda: box.exec(["true"], user="root"),
        }
        for name, attempt in attempts.items():
            try:
                seen[name] = repr(await attempt())
            except Exception as error:  # inspect makes its own kind of some
                seen[name] = "TimeoutError" if isinstance(error, TimeoutError) else type(error).__name__
        greedy = await box.exec(["python3", "-c", "x = 'a' * 10**9"])
        seen["greedy"] = [greedy.success, greedy.stderr.strip().splitlines()[-1]]
        seen["shell"] = (await box.exec(["sh", "-c", "exit 4"])).returncode
        store().set("seen", seen)
        return state

    return solve


def test_the_sandbox_answers_as_inspect_expects(tmp_path):
    sample = Sample(input="x", files={"given/a.txt": "abc"})
    log = run(Task(dataset=[sample], solver=tries(), sandbox="rlhf_lab"), tmp_path, model="mockllm/model")
    assert log.samples[0].store["seen"] == {
        "given": "abc",
        "bytes": [255, 0],
        "escape": "PermissionError",
        "absolute": "PermissionError",
        "missing": "FileNotFoundError",
        "folder": "IsADirectoryError",
        "text": "UnicodeDecodeError",
        "slow": "TimeoutError",
        "loud": "OutputLimitExceededError",
        "user": "SandboxUserUnsupportedError",
        "greedy": [False, "[sandbox] the command ran into its limit of memory"],
        "shell": 4,
    }


def test_settings_of_a_sandbox_are_checked(tmp_path):
    (tmp_path / "wrong.yml").write_text("timeout: 3\n")
    for config, says in ((str(tmp_path / "wrong.yml"), "explain sandbox"), ("missing.yml", "the file does not exist")):
        with pytest.raises(ConfigError, match=says):
            read_settings(config)
    assert read_settings(LabSandbox.config_deserialize({"timeout_s": 3.0})).timeout_s == 3.0


def ask(model: Path, count: int, tmp_path: Path, **config) -> list[str]:
    """Answers of a task without tools, asked `count` times."""
    task = Task(dataset=[Sample(input="six")], solver=generate(), epochs=count)
    log = run(task, tmp_path, model=get_model(f"rlhf_lab/{model}", memoize=False), max_tokens=12, **config)
    return [sample.output.completion for sample in log.samples]


def test_answers_follow_from_question_seed_and_draw(model, tmp_path):
    selected = ask(model, 4, tmp_path, temperature=1.5)
    assert len(set(selected)) > 1
    assert sorted(ask(model, 4, tmp_path, temperature=1.5)) == sorted(selected)
    assert sorted(ask(model, 4, tmp_path, temperature=1.5, seed=1)) != sorted(selected)
    assert len(set(ask(model, 3, tmp_path))) == 1  # greedy


def test_concurrent_questions_are_sampled_together(model, tmp_path, monkeypatch):
    sizes = []
    complete_many = LocalBackend.complete_many
    monkeypatch.setattr(
        LocalBackend,
        "complete_many",
        lambda self, requests, **kwargs: sizes.append(len(requests)) or complete_many(self, requests, **kwargs),
    )
    samples = [Sample(input=f"question {number}") for number in range(12)]
    answers = [sample.output.completion for sample in run_plain(model, samples, tmp_path).samples]
    assert sum(sizes) == 12 and max(sizes) > 6, sizes
    alone = [run_plain(model, [sample], tmp_path).samples[0].output.completion for sample in samples[:2]]
    assert alone == answers[:2]


def run_plain(model: Path, samples: list[Sample], tmp_path: Path) -> EvalLog:
    task = Task(dataset=samples, solver=generate(), config=GenerateConfig(max_tokens=8))
    return run(task, tmp_path, model=get_model(f"rlhf_lab/{model}", memoize=False))


def test_what_the_model_does_not_do_ends_the_task_and_says_why(model, tmp_path):
    task = Task(dataset=[Sample(input="x")], solver=generate(), config=GenerateConfig(top_p=0.5))
    log = evaluate(task, model=f"rlhf_lab/{model}", log_dir=str(tmp_path), display="none")[0]
    assert log.status == "error" and "top_p=0.5" in log.error.message
    assert type(get_model(f"rlhf_lab/{model}").api).__module__ == provider.__name__
    with pytest.raises(ConfigError, match="is not a model"):
        get_model(f"rlhf_lab/{tmp_path}")


def test_inspect_reads_exported_logs(tmp_path):
    files = export(small_run(tmp_path / "agent_bench-abc"), tmp_path / "logs")
    assert [file.name for file in files] == ["agent_bench-abc-react.eval", "agent_bench-abc-react-attacked.eval"]
    log = read_eval_log(str(files[0]))
    assert log.results.scores[0].metrics["mean"].value == pytest.approx(1 / 3)
    first = next(sample for sample in log.samples if sample.id == "mini/oslo" and sample.epoch == 1)
    assert [message.role for message in first.messages[:3]] == ["user", "assistant", "tool"]
    assert first.messages[1].tool_calls[0].arguments == {"entity": "oslo"}
    assert first.model_usage["rlhf_lab/sft_roles"].total_cost == 0.75
    table = samples_df(str(tmp_path / "logs"), quiet=True)
    assert len(table) == 4 and table["score_success"].sum() == 1.0
