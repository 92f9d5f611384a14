"""A JSON request to a service: repeated where that can help, never where it cannot, and never somewhere else."""

from __future__ import annotations

import io
import json
from email.message import Message
from urllib.error import HTTPError, URLError

import pytest

from rlhf_lab.core import http_retry
from rlhf_lab.core.errors import LabError
from rlhf_lab.core.http_client import RefuseRedirects
from rlhf_lab.rewards.external import post

URL = "http://127.0.0.1:9/score"


class Service:
    """Answers requests in turn: text is a body, a number a status (in a pair: with Retry-After); an error is raised."""

    def __init__(self, *answers: str | int | tuple[int, str] | Exception):
        self.answers, self.asked, self.pauses = list(answers), [], []

    def opener(self, redirects, limits):
        self.redirects, self.limits = redirects, limits
        return self

    def open(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0)
        status, retry_after = answer if isinstance(answer, tuple) else (answer, "")
        if isinstance(status, int):
            headers = Message()
            headers["Retry-After"] = retry_after
            raise HTTPError(request.full_url, status, "refused", headers, None)
        if isinstance(answer, Exception):
            raise answer
        return io.BytesIO(answer.encode())


@pytest.fixture
def served(monkeypatch):
    def serve(*answers: str | int | tuple[int, str] | Exception) -> Service:
        service = Service(*answers)
        monkeypatch.setattr(post, "build_opener", service.opener)
        monkeypatch.setattr(http_retry.time, "sleep", service.pauses.append)
        monkeypatch.setattr(http_retry.random, "random", lambda: 1.0)
        return service

    return serve


def ask(retries: int = 2) -> bytes:
    return post.post_json(URL, {"n": 1}, what="reward", retries=retries, timeout_s=3, headers={"Authorization": "key"})


def test_a_failing_service_is_asked_again_after_longer_pauses_or_the_one_it_asks_for(served):
    service = served(503, URLError("gone"), "[1.5]")
    assert ask() == b"[1.5]"
    assert service.pauses == [0.5, 1.0]
    request = service.asked[-1]
    assert json.loads(request.data) == {"n": 1} and service.limits.seconds == 3
    assert request.get_header("Authorization") == "key" and request.get_header("Content-type") == "application/json"
    service = served((429, "7"), (503, "0.25"), "ok")
    assert ask() == b"ok" and service.pauses == [7.0, 0.25]


@pytest.mark.parametrize("status", [302, 400, 401, 404])
def test_what_the_service_refuses_or_redirects_is_not_repeated(served, status):
    service = served(status, "[1.5]")
    with pytest.raises(LabError, match=rf"reward {URL} does not answer: HTTP Error {status}"):
        ask()
    assert len(service.asked) == 1 and not service.pauses


def test_a_redirect_is_not_followed():
    assert RefuseRedirects().redirect_request(None, None, 302, "", {}, "http://elsewhere") is None
