"""What requests cost: before they are sent, at most and about; afterwards, by the tokens that the service counted.

At most: a token of byte-level BPE, of which the tokenizers of all services are, has at least one byte, so a request has
no more tokens than bytes, and an answer no more than `max_tokens`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.address import is_private
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.requests import Usage

MILLION = 1e6
REQUEST_TOKENS = 64
"""Tokens that a service itself writes around a request, at most: roles, beginnings and ends of turns."""
SCHEMA_TOKENS = 1024
"""Tokens, at most, of the instructions that a service writes about a schema, beside the schema."""
TOOLS_TOKENS = 1024
"""Tokens, at most, of the instructions that a service writes about tools, beside their definitions."""
DATED = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d|latest)$")


@dataclass(frozen=True)
class Price:
    """USD per million tokens.

    Attributes:
        batch: a token of a batch costs this many times as much.
        long_above: prompts of more tokens cost `long_input` and `long_output` times as much; 0 is none.
        source: where the price is from, for the ledger.
    """

    input: float
    cache_write: float
    cache_read: float
    output: float
    batch: float = 1.0
    long_above: int = 0
    long_input: float = 1.0
    long_output: float = 1.0
    source: str = ""

    @property
    def free(self) -> bool:
        return not (self.input or self.output)

    def cost(self, usage: Usage, *, batch: bool = False) -> float:
        """USD of an answer's tokens."""
        read = usage.input_tokens + usage.cache_write_tokens + usage.cache_read_tokens
        is_long = bool(self.long_above) and read > self.long_above
        reading = (
            usage.input_tokens * self.input
            + usage.cache_write_tokens * self.cache_write
            + usage.cache_read_tokens * self.cache_read
        ) * (self.long_input if is_long else 1.0)
        writing = usage.output_tokens * self.output * (self.long_output if is_long else 1.0)
        return (reading + writing) / MILLION * (self.batch if batch else 1.0)

    def at_most(self, input_tokens: int, output_tokens: int, *, batch: bool = False) -> float:
        """USD of so many tokens if each were of the dearest kind."""
        written_to_cache = self.cache_write > self.input
        usage = Usage(
            input_tokens=0 if written_to_cache else input_tokens,
            cache_write_tokens=input_tokens if written_to_cache else 0,
            output_tokens=output_tokens,
        )
        return self.cost(usage, batch=batch)


def most_input_tokens(body: Mapping[str, Any], *, schema: bool, tools: bool = False) -> int:
    """Tokens of a request, at most: the bytes of what is sent, and what the service adds."""
    return body_bytes(body) + REQUEST_TOKENS + (SCHEMA_TOKENS if schema else 0) + (TOOLS_TOKENS if tools else 0)


def body_bytes(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body, ensure_ascii=False).encode())


def price_of(settings: Service) -> Price:
    """What the model of a service costs. Raises ConfigError where that is not known."""
    if settings.input_usd is not None and settings.output_usd is not None:
        own = settings.input_usd
        return Price(own, own, own, settings.output_usd, source="judge.input_usd, judge.output_usd")
    listed = _listed(settings.model)
    if listed is not None:
        return listed
    if is_private(settings):
        return Price(0.0, 0.0, 0.0, 0.0, source="a server of one's own")
    raise ConfigError(
        f"judge.model={settings.model} has no price in rlhf_lab/packs/judging/judges/prices.toml; write "
        "judge.input_usd and "
        "judge.output_usd, USD per million tokens (0 where nothing is charged)"
    )


def _listed(model: str) -> Price | None:
    """The price of a model, or of the one that it is a dated version of, in the table."""
    table = price_table()
    row = table["models"].get(model) or table["models"].get(DATED.sub("", model))
    if row is None:
        return None
    long = row.get("long", {})
    return Price(
        input=row["input"],
        cache_write=row["cache_write"],
        cache_read=row["cache_read"],
        output=row["output"],
        batch=table["batch"],
        long_above=long.get("above", 0),
        long_input=long.get("input", 1.0),
        long_output=long.get("output", 1.0),
        source=f"prices.toml {table['version']}",
    )


@cache
def price_table() -> dict[str, Any]:
    """prices.toml: its `version`, the discount of batches and the models."""
    table: dict[str, Any] = tomllib.loads(
        files("rlhf_lab.packs.judging.judges").joinpath("prices.toml").read_text("utf-8")
    )
    return table
