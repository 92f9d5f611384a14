"""Cost of requests: an upper bound before they are sent, and the cost of the counted tokens afterwards.

The upper bound: every tokenizer of the services is a byte-level BPE, whose tokens have at least one byte. A request
therefore has at most as many tokens as bytes, and an answer has at most `max_tokens`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.packs.judging.judges.access import is_private
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.requests import Usage

MILLION = 1e6  # prices are in USD per million tokens
REQUEST_TOKENS = 64
"""Maximum number of tokens that a service adds to a request: roles, starts and ends of turns."""
SCHEMA_TOKENS = 1024
"""Maximum number of tokens of a service's instructions about a schema, in addition to the schema."""
TOOLS_TOKENS = 1024
"""Maximum number of tokens of a service's instructions about tools, in addition to their definitions."""
DATED = re.compile(r"-(\d{8}|\d{4}-\d\d-\d\d|latest)$")
"""Suffix of a dated version of a model."""


@dataclass(frozen=True)
class Price:
    """Price in USD per million tokens.

    Attributes:
        input, cache_write, cache_read, output: price of each kind of token.
        batch: factor on the price of tokens in a batch.
        long_above: number of prompt tokens above which the factors `long_input` and `long_output` apply; 0 is none.
        source: origin of the price, for the ledger.
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
        """Return the cost of an answer's tokens in USD."""
        is_long = bool(self.long_above) and usage.read_tokens > self.long_above
        # tokens written to and read from the cache have prices of their own
        reading = (
            usage.input_tokens * self.input
            + usage.cache_write_tokens * self.cache_write
            + usage.cache_read_tokens * self.cache_read
        ) * (self.long_input if is_long else 1.0)
        writing = usage.output_tokens * self.output * (self.long_output if is_long else 1.0)
        return (reading + writing) / MILLION * (self.batch if batch else 1.0)

    def at_most(self, input_tokens: int, output_tokens: int, *, batch: bool = False) -> float:
        """Return the cost in USD if every token were of the most expensive kind."""
        # writing to the cache may cost more than input without a cache
        written_to_cache = self.cache_write > self.input
        usage = Usage(
            input_tokens=0 if written_to_cache else input_tokens,
            cache_write_tokens=input_tokens if written_to_cache else 0,
            output_tokens=output_tokens,
        )
        return self.cost(usage, batch=batch)


def max_input_tokens(body: Mapping[str, Any], *, schema: bool, tools: bool = False) -> int:
    """Return an upper bound of a request's tokens: the bytes sent plus the service's additions."""
    return body_bytes(body) + REQUEST_TOKENS + SCHEMA_TOKENS * schema + TOOLS_TOKENS * tools


def body_bytes(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body, ensure_ascii=False).encode())


def price_of(settings: Service) -> Price:
    """Return the price of a service's model. Raises ConfigError if it is unknown."""
    if settings.input_usd is not None and settings.output_usd is not None:
        own = settings.input_usd
        return Price(own, own, own, settings.output_usd, source="judge.input_usd, judge.output_usd")
    if (listed := _listed(settings.model)) is not None:
        return listed
    if is_private(settings):
        return Price(0.0, 0.0, 0.0, 0.0, source="a self-hosted server")
    raise ConfigError(
        f"judge.model={settings.model} has no price in rlhf_lab/packs/judging/judges/prices.toml; set judge.input_usd "
        "and judge.output_usd in USD per million tokens (0 if nothing is charged)"
    )


def _listed(model: str) -> Price | None:
    table = price_table()
    # a dated version costs the same as its model unless it is listed itself
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
    """Return prices.toml: its `version`, the discount of batches, and the models."""
    return tomllib.loads(Path(__file__).with_name("prices.toml").read_text("utf-8"))
