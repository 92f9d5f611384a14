"""The common part of both SDKs' backends; test_judge_client.py runs them against a server."""

from __future__ import annotations

import pytest
from judge_server import MODELS

from rlhf_lab.packs.judging.judges.backends.anthropic import AnthropicBackend
from rlhf_lab.packs.judging.judges.backends.openai_compatible import OpenAIBackend
from rlhf_lab.packs.judging.judges.backends.sdk import SdkBackend
from rlhf_lab.packs.judging.judges.backends.settings import Anthropic, OpenAICompatible

BACKENDS = {"anthropic": (AnthropicBackend, Anthropic), "openai_compatible": (OpenAIBackend, OpenAICompatible)}


@pytest.mark.parametrize("kind", BACKENDS)
def test_clients_leave_retries_to_the_ledger(kind):
    backend_class, settings_class = BACKENDS[kind]
    backend = backend_class(settings_class(model=MODELS[kind], request_timeout_s=7.0), sends=False)
    assert isinstance(backend, SdkBackend)
    assert backend.identity == {"kind": kind, **backend.settings.identity()}
    assert backend.client.max_retries == backend.batch_client.max_retries == 0
    # a batch is one large file, so it may take longer than an answer
    assert backend.client.timeout == 7.0 and backend.batch_client.timeout == 1800.0
