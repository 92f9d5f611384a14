"""The sub-command `judge`: a judge compares the replies of two sources, or grades those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from rlhf_lab.config import check, compose, registry, root
from rlhf_lab.config.groups import DataSource
from rlhf_lab.config.overrides import forced
from rlhf_lab.config.schema import did_you_mean
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import fingerprint
from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.caller import Caller, open_judge
from rlhf_lab.packs.judging.judges.client import estimate
from rlhf_lab.packs.judging.judges.judgement import Judging, Options, names_of
from rlhf_lab.packs.judging.judges.judging import Item, Metered, number_items
from rlhf_lab.packs.judging.judges.pairwise import Candidates, comparison_requests
from rlhf_lab.packs.judging.judges.requests import Request
from rlhf_lab.packs.judging.judges.rubric import JudgeRubric, grade_request, load_rubric
from rlhf_lab.packs.judging.judges.sources import Answer, Matched, Source, match, read_source
from rlhf_lab.reports.comparison.report import outputs_folder
from rlhf_lab.results.folders import find_run

OPTIONS = ("policy", "items", "seed", "reference", "rubric", "max_tokens", "to", "outputs")
GROUPS = ("judge", "data")
DRY_RUN = "--dry-run"


def read_words(words: Sequence[str]) -> Options:
    """The options that the words of a command line name. Raises ConfigError with every problem."""
    problems: list[str] = []
    paths, options, overrides = _sort_words([word for word in words if word != DRY_RUN], problems)
    if len(paths) not in (1, 2):
        problems.append("judge takes one or two run directories or JSONL files: judge outputs/runs/A outputs/runs/B")
    numbers = {"items": 0, "seed": 0, "max_tokens": 512}
    for name in numbers:
        if name in options:
            if options[name].isdigit():
                numbers[name] = int(options[name])
            else:
                problems.append(f"{name}={options[name]} is not a whole number of 0 or more")
    if numbers["max_tokens"] == 0:
        problems.append("max_tokens=0 leaves the judge nothing to say; write 1 or more")
    usable = compose.usable_overrides([forced(override) for override in overrides], problems)
    if problems:
        raise ConfigError(problems)
    values = compose.compose([*(override.input_line or "" for override in usable), "+recipe=sft"])
    config = check.effective({**values, "study": None})
    policy = options.get("policy")
    policies: tuple[str | None, ...] = (policy,) * len(paths)
    if policy and "," in policy and len(paths) == 2:
        first, _, second = policy.partition(",")
        policies = (first.strip(), second.strip())
    return Options(
        sources=tuple(Path(path) for path in paths),
        policies=policies,
        reference=options.get("reference", ""),
        rubric=options.get("rubric", ""),
        to=Path(options["to"]) if "to" in options else None,
        outputs=Path(options["outputs"]) if "outputs" in options else None,
        dry_run=DRY_RUN in words,
        config=config,
        names_data=any(override.startswith("data") for override in overrides),
        **numbers,
    )


def _sort_words(words: Sequence[str], problems: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """(sources, options by name, overrides of the groups judge and data)."""
    paths: list[str] = []
    options: dict[str, str] = {}
    overrides: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or Path(word).exists():  # the name of a folder may contain an equals sign
            paths.append(word)
        elif name.partition(".")[0] in GROUPS:
            overrides.append(word)
        elif name in OPTIONS:
            options[name] = value
        else:
            problems.append(f"{name} is not an option of judge{did_you_mean(name, (*OPTIONS, *GROUPS))}")
    return paths, options, overrides


def run(words: Sequence[str]) -> None:
    """Judge, print what was found, and say where it lies."""
    options = read_words(words)
    sources = [_read(path, policy) for path, policy in zip(options.sources, options.policies, strict=True)]
    if len({(source.path.resolve(), source.policy) for source in sources}) < len(sources):
        raise DataError(f"A and B are the same replies, {sources[0].path}; name two policies: policy='OF A,OF B'")
    data = _data(options, sources)
    corpus: Corpus | None = registry.build("data", data) if data else None
    rubric = load_rubric(options.rubric) if options.rubric or len(sources) == 1 else None
    matched = match(*sources) if len(sources) == 2 else None
    items = _items(options, sources, matched, corpus)
    outputs = options.outputs or outputs_folder(sources[0].path) or Path("outputs")
    caller = Caller(
        account=_account(options, sources, rubric),
        outputs=outputs,
        oracle=corpus.oracle if corpus else None,
        rubric=corpus.rubric if corpus else None,
        device="cpu" if options.dry_run else _device(options.config),
        note=lambda text: console.print(f"  note: {text}", soft_wrap=True, markup=False),
        only_counts=options.dry_run,
    )
    if options.dry_run:
        _print_estimate(caller, items, rubric, options)
        return
    judge = open_judge(options.config.judge, caller)
    world = ""
    if data and options.config.judge.reads_truth:
        world = fingerprint([registry.kind_of("data", data), asdict(data)])
    Judging(options, sources, matched, rubric, Metered(judge, world), items).run()


def _read(path: Path, policy: str | None) -> Source:
    """A run, or a job of a study that points at one; or a file."""
    return read_source(find_run(path) if path.is_dir() else path, policy)


def _account(options: Options, sources: Sequence[Source], rubric: JudgeRubric | None) -> str:
    """The name under which this command's spending is counted, the same when it is given again.

    A command with other sources, another judge or other criteria is another one, with a budget of its own.
    """
    judge = options.config.judge
    asked = [registry.kind_of("judge", judge), dict(judge.identity()), rubric.digest if rubric else ""]
    paths = [[str(source.path.resolve()), source.policy] for source in sources]
    digest = fingerprint([asked, paths, options.reference, options.max_tokens])
    return f"judge {' '.join(source.path.name for source in sources)} ({digest[:8]})"


def _device(config: root.Config) -> str:
    # Imported here because it imports torch, which a wrong command does without.
    from rlhf_lab.core.ranks import device

    return device(config.runtime.device)


def _data(options: Options, sources: Sequence[Source]) -> DataSource | None:
    """The data of the replies, where something has to be read from them: the world's truth, or a reference."""
    settings = options.config.judge
    runs = [source for source in sources if source.policy is not None]
    reads_reference = bool(options.reference and (runs or options.names_data))
    if not settings.reads_truth and not reads_reference:
        return None
    if options.names_data:
        return options.config.data.of_run(0)
    if runs:
        return _run_config(runs[0].path).data
    kind = registry.kind_of("judge", settings)
    raise ConfigError(
        f"judge={kind} answers from the truth of a world, and files name none; name the world of the prompts, "
        "data=mini_hh data.seed=0, or another judge: judge=anthropic, openai_compatible or local"
    )


def _run_config(folder: Path) -> root.Config:
    """The config of a stored run. Raises DataError where there is none, or it is none of this version."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise DataError(f"{folder} has no config.yaml, which names its data; name them: data=…")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        return check.effective({**values, "study": None})
    except ConfigError as error:
        raise DataError(f"{path}: {error}; name the data of the run: data=…") from None


def _items(options: Options, sources: Sequence[Source], matched: Matched | None, corpus: Corpus | None) -> list[Item]:
    """What is judged, in the order of A. A smaller draw lies within a larger one."""
    names = names_of(sources)
    if matched:
        candidates = [
            Candidates(a.prompt, a.response, b.response, names, _reference(options, (a, b), corpus))
            for a, b in matched.pairs
        ]
    else:
        answers = sources[0].answers
        candidates = [
            Candidates(answer.prompt, answer.response, "", names, _reference(options, (answer,), corpus))
            for answer in answers
        ]
    if options.reference and all(each.reference is None for each in candidates):
        raise DataError(
            f"reference={options.reference}: no prompt has this column, in the files or in the data of the run; name "
            "another, or leave it out"
        )
    items = number_items(candidates)
    if options.items and options.items < len(items):
        drawn = np.random.default_rng(options.seed).permutation(len(items))[: options.items]
        items = [items[i] for i in sorted(drawn.tolist())]
    return items


def _reference(options: Options, answers: Sequence[Answer], corpus: Corpus | None) -> str | None:
    """The reference answer to a prompt: from a row of a file, else from the data of the run."""
    if not options.reference:
        return None
    facts = [answer.facts for answer in answers]
    facts += [corpus.task(answers[0].prompt).facts] if corpus else []
    value = next((known[options.reference] for known in facts if known.get(options.reference) is not None), None)
    return None if value is None else str(value)


def _requests(items: Sequence[Item], rubric: JudgeRubric | None, options: Options) -> list[Request]:
    """All questions, as the judge would be asked them."""
    requests: list[Request] = []
    for item in items:
        texts = item.candidates
        if len(options.sources) == 1:
            assert rubric is not None
            request = grade_request(
                rubric, texts.prompt, texts.first, reference=texts.reference, max_tokens=options.max_tokens
            )
            requests.append(request)
        elif texts.first != texts.second:
            requests += comparison_requests(texts, rubric, max_tokens=options.max_tokens)
    return requests


def _print_estimate(caller: Caller, items: Sequence[Item], rubric: JudgeRubric | None, options: Options) -> None:
    """What judging would take. Nothing is sent and nothing is written."""
    requests = _requests(items, rubric, options)
    takes: object = f"{len(requests)} requests, at no cost"
    if isinstance(options.config.judge, Service):  # another judge need not be opened, which may load a model
        takes = estimate(open_judge(options.config.judge, caller), requests)
    console.print(f"{len(items)} {'comparisons' if len(options.sources) == 2 else 'replies'}: {takes}", soft_wrap=True)
