"""Episodes of models whose chat template has tools: their instructions, their calls, what is read and learned."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_chat import FAMILIES, tokenizer_of
from test_episode_collector import Scripted
from test_tool_calls import CODER, HERMES, LLAMA, TEMPLATES, encoder_of
from torch import nn

from rlhf_lab.core.episodes import Episode, Offering, Task
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import function_call
from rlhf_lab.core.types import Corpus
from rlhf_lab.data import environment
from rlhf_lab.data.file_settings import ForeignEnvironment
from rlhf_lab.data.transcript import render_prompt, response_message, response_text, to_conversation, unquote
from rlhf_lab.losses.policy import POLICY_LOSSES, ClipRange, PolicyTokens
from rlhf_lab.models.build import scratch_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.models.turns import conversation_row
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.sampling.experience import Experience
from rlhf_lab.sampling.settings import Local

COUNTER = '''
class Counter:
    def reset(self, goal=0, says="total {}", **row):
        self.goal, self.says, self.total = goal, says, 0

    def add(self, amount: int) -> str:
        """Adds to the total.

        Args:
            amount: how much to add.
        """
        self.total += amount
        return self.says.format(self.total)

    def get_reward(self):
        return float(self.total == self.goal)
'''
TOOL_TURNS = (
    "{% if m['role'] == 'tool' %}{% if loop.first or loop.previtem['role'] != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\\n' }}<tool_response>\n{{ m['content'] }}\n</tool_response>"
    "{% if loop.last or loop.nextitem['role'] != 'tool' %}<|im_end|>\n{% endif %}{% else %}"
)
"""As Qwen: results that follow each other are one turn of the user's."""
QWEN = HERMES.replace("{% for m in messages %}", "{% for m in messages %}" + TOOL_TURNS).replace(
    "{% endfor %}<|im_end|>\n{% endfor %}", "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
)
LLAMA_TOOLS = LLAMA.replace(
    "{% else %}{{ m['content'] }}{% endif %}<|eot|>",
    "{% elif m['role'] == 'tool' %}{{ m['content'] | tojson }}{% else %}{{ m['content'] }}{% endif %}<|eot|>",
)
"""As Llama 3.1, which writes results as JSON."""
MISTRAL_TOOLS = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m['content'] }}[/INST]"
    "{% elif m['role'] == 'tool' %}"
    "{% if messages[loop.index0 - 1]['role'] == 'assistant' and not messages[loop.index0 - 1]['tool_calls'] %}"
    "{{ raise_exception('a result without its call') }}{% endif %}"
    "{% if m['tool_call_id'] | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "[TOOL_RESULTS]{{ m['tool_call_id'] }}[TOOL_CONTENT]{{ m['content'] }}[/TOOL_RESULTS]"
    "{% else %}{{ m['content'] }}{% for call in m['tool_calls'] %}"
    "{% if call['id'] | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "[TOOL_CALLS]{{ call['function']['name'] }}[CALL_ID]{{ call['id'] }}[ARGS]"
    "{{ call['function']['arguments'] | tojson }}{% endfor %}</s>{% endif %}{% endfor %}"
)
MARKS = ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
ENCODERS: dict[str, tuple[Any, ...]] = {
    "qwen": (QWEN, *TEMPLATES["hermes"][1:]),
    "llama": (LLAMA_TOOLS, *TEMPLATES["llama"][1:]),
    "mistral": (MISTRAL_TOOLS, [*MARKS, "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CONTENT]"], [], "</s>"),
    "coder": (CODER.replace("m['role'] }}", "m['role'] | replace('tool', 'user') }}"), *TEMPLATES["coder"][1:]),
}


def build_corpus(directory: Path, **columns: Any) -> Corpus:
    (directory / "counter.py").write_text(COUNTER)
    rows = [{"prompt": f"Reach {number % 5}, task {number}.", "goal": number % 5, **columns} for number in range(60)]
    (directory / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ForeignEnvironment(
        style="trl",
        environment=f"{directory}/counter.py:Counter",
        path=str(directory / "tasks.jsonl"),
        test_fraction=0.2,
        max_turns=3,
    )
    return environment.build(settings)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return build_corpus(tmp_path_factory.mktemp("counter"))


@pytest.fixture(params=ENCODERS)
def encoder(request) -> Encoder:
    return encoder_of(*ENCODERS[request.param])


def collector_of(corpus: Corpus, encoder: Encoder, sampler: Any = None, **rollout: Any) -> EpisodeCollector:
    settings = Local(**{"max_new_tokens": 60, "max_prompt_tokens": 600, **rollout})
    run: Any = SimpleNamespace(
        config=SimpleNamespace(rollout=settings, data=SimpleNamespace(max_turns=3), engine="native"), corpus=corpus
    )
    collector = EpisodeCollector(run, encoder)
    if sampler:
        collector.sampler = sampler
    return collector


def add(amount: Any, id: str = "") -> dict[str, Any]:
    return function_call("add", {"amount": amount}, id)


def said(encoder: Encoder, *calls: dict[str, Any], content: str = "") -> list[int]:
    """A turn in the form of the template, as the model would write it."""
    numbered = [{"id": f"aaaa{index:05d}", **call} for index, call in enumerate(calls)]
    turn: Message = {"role": "assistant", "content": content, "tool_calls": numbered}
    return encoder.chat.turns([{"role": "user", "content": "hi"}, turn], None, [1])[0]


def collected(corpus: Corpus, encoder: Encoder, *turns: list[int]) -> Episode:
    collector = collector_of(corpus, encoder, Scripted(turns))
    return collector.collect(nn.Identity(), corpus.tasks("train")[:1], 1, 0)[0][0]


def answer_of(encoder: Encoder, episode: Episode) -> str:
    (segment,) = [segment for segment in episode.segments if not segment.sampled]
    return encoder.tokenizer.decode(segment.token_ids)


def test_the_prompt_has_the_tools_as_the_template_writes_them(corpus, encoder):
    assert isinstance(corpus.environment, Offering)
    task = corpus.tasks("train")[0]
    (definition,) = corpus.environment.definitions(task)
    assert definition["function"]["name"] == "add"
    (ids,) = collector_of(corpus, encoder).encode([task])
    messages = [{"role": "user", "content": to_conversation(task.prompt).messages[0]["content"]}]
    written = encoder.tokenizer.apply_chat_template(
        messages, tools=[definition], tokenize=False, add_generation_prompt=True
    )
    assert encoder.tokenizer.decode(ids) == written
    assert "Adds to the total." in written


def test_a_call_is_made_and_its_result_read_as_the_template_writes_it(corpus, encoder):
    """Prompt, call and answer laid end to end are the template's rendering of the full conversation."""
    task = corpus.tasks("train")[0]
    goal = task.metadata["goal"]
    last = encoder.response("done")
    episode = collected(corpus, encoder, said(encoder, add(goal)), last)
    assert [turn.reward for turn in episode.turns] == [0.0, 1.0]
    assert episode.response == "done"
    tools = corpus.environment.definitions(task)
    messages, shown = to_conversation(episode.prompt)
    assert shown == tools
    (call,) = messages[1]["tool_calls"]
    # elements hold text
    assert call["function"] in (add(goal)["function"], add(str(goal))["function"])
    assert messages[2] == {"role": "tool", "name": "add", "tool_call_id": call["id"], "content": f"total {goal}"}
    ids = [*episode.prompt_ids, *episode.token_ids]
    messages.append({"role": "assistant", "content": "done"})
    written = encoder.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert written.startswith(encoder.tokenizer.decode(ids))
    assert episode.sampled == [True] * len(episode.turns[0].token_ids) + [False] * (
        len(episode.token_ids) - len(episode.turns[0].token_ids) - len(last)
    ) + [True] * len(last)


def test_ids_number_the_calls_of_an_episode_unless_the_model_wrote_one(corpus):
    encoder = encoder_of(*ENCODERS["qwen"])
    turn = said(encoder, add(1), add(2), content="both")
    episode = collected(corpus, encoder, turn, turn, encoder.response("done"))
    messages = to_conversation(episode.prompt).messages
    generated = [call["id"] for message in messages for call in message.get("tool_calls", [])]
    assert generated == [f"call{number:05d}" for number in range(4)]
    assert [m["tool_call_id"] for m in messages if m["role"] == "tool"] == generated
    first = next(segment for segment in episode.segments if not segment.sampled)
    assert encoder.tokenizer.decode(first.token_ids) == (
        "\n<|im_start|>user\n<tool_response>\ntotal 1\n</tool_response>\n<tool_response>\ntotal 3\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    encoder = encoder_of(*ENCODERS["mistral"])
    episode = collected(corpus, encoder, said(encoder, add(1, "Zz1234567")), encoder.response("done"))
    assert answer_of(encoder, episode) == "[TOOL_RESULTS]Zz1234567[TOOL_CONTENT]total 1[/TOOL_RESULTS]"


def test_a_call_that_cannot_be_read_is_answered(corpus, encoder):
    """Only where nothing marks a call, one that is no JSON is text like any other."""
    broken = encoder.tokenizer.decode(said(encoder, add(1))).replace("1", "1 and so on").replace("}", "")
    ids = encoder.tokenizer(broken, add_special_tokens=False)["input_ids"]
    episode = collected(corpus, encoder, ids, encoder.response("done"))
    if not encoder.chat.call_format.opening:
        assert len(episode.turns) == 1 and episode.response.startswith('{"name": "add"')
        return
    assert "error: " in answer_of(encoder, episode)


def test_calls_in_the_words_of_a_transcript_are_text(corpus, encoder):
    """A policy that types them calls nothing, and its environment reads what a transcript quotes."""
    typed = response_text({"role": "assistant", "content": "so", "tool_calls": [add(2, "call00000")]})
    episode = collected(corpus, encoder, encoder.chat.response(typed))
    assert len(episode.turns) == 1
    assert "tool_calls" not in response_message(episode.response)
    assert unquote(episode.response) == typed
    # in addition to a call of the template, the text contains one call
    both = collected(corpus, encoder, said(encoder, add(1), content=typed), encoder.response("done"))
    called = [message["tool_calls"] for message in to_conversation(both.prompt).messages if "tool_calls" in message]
    if encoder.chat.call_format.opening:
        assert [len(calls) for calls in called] == [1]


def test_a_call_as_text_is_answered_too(corpus, encoder):
    """By a model that was trained on text; a template may refuse a result without a call before it."""
    episode = collected(corpus, encoder, encoder.response("Action: add[2]"), encoder.response("done"))
    assert "total 2" in answer_of(encoder, episode)


def test_what_a_tool_says_is_text(tmp_path, encoder):
    end = encoder.tokenizer.convert_ids_to_tokens(encoder.eos_id)
    says = f'he said "{end}", {{}}\nand went'
    corpus = build_corpus(tmp_path, says=says)
    episode = collected(corpus, encoder, said(encoder, add(1)), encoder.response("done"))
    (segment,) = [segment for segment in episode.segments if not segment.sampled]
    full = said(encoder, add(1))
    turns_of_template = encoder.next_prompt([{"role": "tool", "content": "x"}], finished=True).count(encoder.eos_id)
    assert segment.token_ids.count(encoder.eos_id) == turns_of_template, "the token that the text spells ends nothing"
    assert full.count(encoder.eos_id) == 1


def test_results_are_json_where_the_template_writes_json(tmp_path):
    corpus = build_corpus(tmp_path, says='"{}"\n')
    encoder = encoder_of(*ENCODERS["llama"])
    episode = collected(corpus, encoder, said(encoder, add(1)), encoder.response("done"))
    assert '"\\"1\\"\\n"' in answer_of(encoder, episode)


@pytest.mark.parametrize("chat", [True, False], ids=["a template without tools", "no template"])
def test_without_such_a_template_nothing_changes(corpus, chat):
    tokenizer = tokenizer_of(FAMILIES["chatml"])
    encoder = Encoder(tokenizer, to_conversation if chat else None)
    task = corpus.tasks("train")[0]
    collector = collector_of(corpus, encoder)
    assert collector.prompt(task) == task.prompt
    assert collector.encode([task]) == [encoder.prompt(task.prompt)]
    text = '<tool_call>{"name": "add", "arguments": {"amount": 1}}</tool_call>'
    turns = [encoder.response("Action: add[1]"), encoder.response(text)]
    episode = collected(corpus, encoder, *turns)
    assert episode.response == encoder.text(turns[1]) == text
    messages, tools = to_conversation(episode.prompt)
    assert tools == [] and messages[1] == {"role": "assistant", "content": "Action: add[1]"}


def test_calls_are_text_where_nobody_offers_tools(corpus):
    """A world of text (data=tools) reads what a model wrote, whatever its template."""
    encoder = encoder_of(*ENCODERS["qwen"])
    read: list[str] = []

    class World:
        def tasks(self, split: str) -> list[Task]: ...
        def reset(self, task: Task, seed: int) -> None: ...
        def grade(self, episodes: Any) -> dict[str, Any]:
            return {}

        def step(self, state: None, response: str) -> Any:
            read.append(response)
            return SimpleNamespace(messages=[], reward=0.0, done=True)

    task = Task("\n\nHuman: hi\n\nAssistant:")
    silent: Any = SimpleNamespace(environment=World(), renderer=None)
    turn = said(encoder, add(1))
    collector_of(silent, encoder, Scripted([turn])).collect(nn.Identity(), [task], 1, 0)
    assert read == [encoder.text(turn)] and "<tool_call>" in read[0]
    # a prompt of the data's own that lists tools tells the model of them
    stated = Task(render_prompt([{"role": "user", "content": "hi"}], corpus.environment.definitions(task)))
    collector_of(silent, encoder, Scripted([turn])).collect(nn.Identity(), [stated], 1, 0)
    assert read[1] == response_text({"role": "assistant", "content": "", "tool_calls": [add(1, "call00000")]})


# --- a step of GRPO


def imitated(corpus: Corpus, encoder: Encoder, steps: int) -> nn.Module:
    """A policy that imitates calls in the form of the template: enough to make some, too little to be sure."""
    policy = scratch_policy(Scratch(hidden=32, layers=1, heads=2, max_positions=1024), encoder.tokenizer, seed=0)
    rows = []
    for task in corpus.tasks("train"):
        goal = task.metadata["goal"]
        messages: list[Message] = [
            *to_conversation(task.prompt).messages,
            {"role": "assistant", "content": "", "tool_calls": [add(goal, "call00000")]},
            {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": f"total {goal}"},
        ]
        prompt = render_prompt(messages, corpus.environment.definitions(task))
        rows.append(conversation_row(encoder, prompt, "done", 1024, learn_from=1))
    optimiser = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    for step in range(steps):
        chosen = [rows[(step * 8 + i) % len(rows)] for i in range(8)]
        batch = Experience([row for row, _ in chosen], {}, [mask for _, mask in chosen])
        micro = batch.micro(range(8), torch.ones(batch.start[-1]), "cpu")
        loss = -token_logps(policy, micro.batch).logps_N.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return policy


@pytest.mark.parametrize("name, steps", [("qwen", 80)])
def test_a_step_of_grpo_on_calls_of_the_template(corpus, name, steps):
    """Sampled tokens are the trained tokens: equal log-probabilities, no gradient of tool output, and a step that
    raises the tokens of the better half of each group."""
    encoder = encoder_of(*ENCODERS[name])
    policy = imitated(corpus, encoder, steps)
    tasks = corpus.tasks("train")[:6]
    with torch.no_grad():
        groups = collector_of(corpus, encoder, max_new_tokens=40).collect(policy, tasks, 8, seed=1)
    episodes = [episode for group in groups for episode in group]
    with_calls = [episode for episode in episodes if len(episode.turns) > 1]
    assert len(with_calls) >= 8, "too few episodes have a call in them to say anything"
    for episode in with_calls:
        messages = to_conversation(episode.prompt).messages
        assert messages[1]["tool_calls"] and messages[2]["role"] == "tool"

    experience = Experience.of(episodes)
    micro = experience.micro(range(len(episodes)), torch.ones(experience.start[-1]), "cpu")
    logps = token_logps(policy, micro.batch)
    sampled_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
    # The trained policy has log-probabilities down to −10, whose float32 rounding differs between processors by up to
    # about 1e-5; a wrong position or mask is off by more than 1e-2.
    assert (logps.logps_N.detach() - sampled_N).abs().max() < 1e-4

    row_N, column_N = micro.batch.targets()
    for index, episode in enumerate(episodes):
        learned = {int(column) - len(episode.prompt_ids) for column in column_N[row_N == index]}
        assert learned == {position for position, sampled in enumerate(episode.sampled) if sampled}

    rewards = torch.tensor([[sum(turn.reward for turn in episode.turns) for episode in group] for group in groups])
    assert (rewards.std(1) > 0).any(), "no group differs"
    advantage_E = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    tokens = PolicyTokens(logps.logps_N, logps.logps_N.detach(), advantage_E[logps.row_N], logps.row_N, logps.rows)
    loss = POLICY_LOSSES["ppo_clip"](tokens, ClipRange(0.2, 0.2, 0.0, 20.0)).per_token.mean()
    policy.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.grad is not None:
                parameter -= 0.05 * parameter.grad
        after = token_logps(policy, micro.batch).logps_N
    gain = (after - logps.logps_N.detach()) * advantage_E[logps.row_N]
    assert gain.mean() > 0
