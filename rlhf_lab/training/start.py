"""Starting point of a stage: its policy, the frozen reference, and metrics of how its data was read."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import load
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.models import families
from rlhf_lab.models.build import load_encoder, load_policy, scratch_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.lora import has_adapter, trainable, without_adapter
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.reward_ensemble import averaged, same_shape
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.models.sharded import undivided
from rlhf_lab.models.skeleton import placed
from rlhf_lab.models.tokenizer import train_tokenizer, vocabulary_texts
from rlhf_lab.models.weights import count
from rlhf_lab.training.run import Run
from rlhf_lab.training.settings import SOUP


def start_policy(run: Run) -> tuple[nn.Module, Encoder]:
    """Return the policy of a first stage: `needs.policy`, else the Hugging Face model, else a new small model."""
    settings = run.config.model
    source = run.needs.get("policy") or (settings.path if isinstance(settings, HuggingFace) else None)
    if source:
        model = load_policy(source, settings, device=run.load_device, trained=True)
        encoder = load_encoder(source, settings)
        return trainable(model, settings.lora, run.seed("lora")), encoder
    family = families.families().get(settings.family)
    if family is not None:
        policy, encoder = load(family.new_policy)(run, settings)
        return policy, encoder
    # A new small model: its tokenizer is trained on the corpus, too.
    tokenizer = train_tokenizer(vocabulary_texts(vocabulary_rows(run)), settings.vocabulary)

    def build(device: str) -> nn.Module:
        return scratch_policy(settings, tokenizer, run.seed("init")).to(device)

    return placed(build, run.load_device), Encoder(tokenizer)


def vocabulary_rows(run: Run) -> list[Pair]:
    """Return the rows on which the tokenizer of a new model is trained, independent of the rows that it trains on.

    By default these are the data's own rows, so that policies trained on different synthetic rows share a vocabulary.
    """
    rows = list(run.own_corpus.train)
    if run.config.mixture.vocabulary == "all":
        rows += [pair for pairs in run.generate_rows.values() for pair in pairs]
    return rows


def load_policy_twice(run: Run) -> tuple[nn.Module, nn.Module, Encoder]:
    """Return (trainable policy, frozen reference, encoder), both models from `needs.policy`.

    With `needs.soup` the reference is the mean of the weights of both policies, a model of its own.
    The base of an adapter serves as the reference, and as `run.base` for adapters of other roles. A sharded policy has
    its full parameters only during its own passes, so its base cannot be used alone; the other models are then copies.
    """
    source = run.needs["policy"]
    settings = run.config.model
    model = load_policy(source, settings, device=run.load_device, trained=True)
    model = trainable(model, settings.lora, run.seed("lora"))
    sharding = run.config.sharding
    is_sharded = registry.kind_of("sharding", sharding) == "fsdp" or getattr(sharding, "stage", 0) == 3
    if has_adapter(model) and not is_sharded:
        base = without_adapter(model)
        run.base = OneBase(base, run.note)
        if SOUP not in run.needs:
            return model, base, load_encoder(source, settings)
    elif has_adapter(model):
        run.note(
            "the base of the policy's adapter is sharded, so reference, critic and reward models have separate copies; "
            "with sharding=none or ddp they share one base"
        )
    # in host memory every process has its own reference
    reference_device = "cpu" if sharding.reference == "offload" and is_sharded else run.load_device
    if SOUP in run.needs:
        reference = load_soup(run, reference_device)
    else:
        reference = load_policy(source, settings, device=reference_device, role="reference").requires_grad_(False)
    return model, reference, load_encoder(source, settings)


def load_soup(run: Run, device: str) -> nn.Module:
    """Return the frozen mean of the weights of `needs.policy` and `needs.soup` (SALSA, arXiv:2411.01798).

    Raises ConfigError if their weights cannot be averaged.
    """
    settings = run.config.model
    if settings.stored("reference") == "nf4":
        raise ConfigError(
            "needs.soup averages weights, which needs full numbers; use model.weights=bfloat16 or float32"
        )
    members = [load_policy(run.needs[role], settings, device=device, role="reference") for role in ("policy", SOUP)]
    if not same_shape(members):
        raise ConfigError(
            f"needs.soup={run.needs[SOUP]} has another architecture than needs.policy={run.needs['policy']}, so their "
            "weights have no mean; fine-tune both policies from the same model"
        )
    return averaged(members)


def model_size(model: nn.Module) -> dict[str, float]:
    """Return the number of parameters, of trained ones, and MiB of a checkpoint: all parameters, or the adapter's."""
    parameters = list(undivided(model).parameters())
    trained = [p for p in parameters if p.requires_grad]
    return {
        "parameters": sum(count(p) for p in parameters),
        "parameters/trained": sum(p.numel() for p in trained),
        "checkpoint_mib": sum(p.numel() * p.element_size() for p in trained) / 2**20,
    }


def corpus_report(corpus: Corpus, encoder: Encoder) -> dict[str, Any]:
    """Return flat metrics of how the data was read and tokenised."""
    metrics: dict[str, Any] = {f"encoding/{event}": count for event, count in encoder.counts.items()}
    for split, report in corpus.report.items():
        metrics |= {f"data/{split}/rows": report.rows, f"data/{split}/kept": report.kept}
        metrics |= {f"data/{split}/dropped/{reason}": count for reason, count in report.dropped.items()}
    return metrics
