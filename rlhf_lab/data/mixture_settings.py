"""Settings of the mixture of made corpora and the data's own rows. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import schema
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@section("mixture")
@dataclass(frozen=True)
class Mixture(Section):
    """Which rows a stage trains on where `needs` names corpora that a stage has made (`needs.corpus=cai_preferences`).

    Of the named stage alone: one before it follows `stages.RECIPE.mixture`.

    Args:
        shares: source → its part of the training rows, in proportion: `data` is the data's own rows, the others are
            roles of `needs` that hold a corpus (`corpus`, `corpus_…`). A source that is not named has no part. null
            takes the made corpora whole and none of the data's own rows.
        rows: training rows in all, drawn at random; a smaller draw lies within a larger one. 0 takes as many as the
            shares allow with no row twice.
        vocabulary: whose words a model made from scratch gets tokens for: `data` is the data's own rows, so that models
            of different mixtures share a vocabulary; `all` adds every row of the corpora, whatever the shares, for
            corpora that speak of another world. A model that is loaded has its own.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("vocabulary",)
    shares: dict[str, Annotated[float, Ge(0)]] | None = None
    rows: Annotated[int, Ge(0, hint="0 is as many as the shares allow")] = 0
    vocabulary: Literal["data", "all"] = "data"

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.shares is None or any(self.shares.values()),
                f"shares={self.shares} are all 0; give one source a part",
            ),
        )

    def contradictions(self, config: Config) -> list[str]:
        algorithm, roles = config.algorithm, config.corpus_roles
        if not roles:
            if self == Mixture():
                return []
            return ["mixture is read where needs names a made corpus; name one, e.g. +needs.corpus=cai_preferences"]
        problems = []
        if self.vocabulary == "all" and config.needs.get("policy"):
            problems.append(
                "mixture.vocabulary=all: the model that this stage starts from has its vocabulary; write it for the "
                "stage that makes a model from scratch, e.g. stages.sft_mixed.mixture.vocabulary=all"
            )
        sources = ("data", *roles)
        for name in self.shares or {}:
            if name not in sources:
                hint = schema.did_you_mean(name, sources)
                problems.append(f"mixture.shares.{name} is no source of this run; it has {', '.join(sources)}{hint}")
        if config.data.max_turns > 1 and algorithm.trains_on == "prompts":
            problems.append("needs.corpus: the tasks of data that answer the policy come from their environment alone")
        if algorithm.trains_on == "prompts" and Capability.ANSWERS in config.data.capabilities:
            problems.append("needs.corpus: made prompts have no answer that a verifier could check; use other data")
        return problems
