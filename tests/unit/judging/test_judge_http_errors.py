"""`rlhf_lab.packs.judging.judges.backends.sdk`: was an attempt charged, when to try again, what to show."""

from __future__ import annotations

import pytest
from judge_server import connect, question, status

from rlhf_lab.packs.judging.judges.service import ServiceError


@pytest.mark.parametrize(
    "code, fate, passing, overloaded",
    [
        (400, "refused", False, False),
        (401, "refused", False, False),
        (404, "refused", False, False),
        (408, "lost", True, False),
        (409, "lost", True, False),
        (429, "refused", True, True),
        (500, "refused", True, False),
        (502, "lost", True, False),
        (503, "refused", True, True),
        (504, "lost", True, False),
        (529, "refused", True, True),
    ],
)
def test_each_status(server, kind, code, fate, passing, overloaded, tmp_path):
    server.always = lambda asked: status(code, "a reason", retry_after="3")
    with pytest.raises(ServiceError) as caught:
        connect(server.url, kind, tmp_path).channel.backend.send(question(0), "a key")
    error = caught.value
    assert (error.fate, error.passing, error.overloaded) == (fate, passing, overloaded)
    assert (error.status, error.retry_after_s) == (code, 3.0)
    assert error.message.startswith(f"{code} a reason")


def test_an_error_that_is_a_page(server, kind, tmp_path):
    """Gateways answer in HTML; the message is short, and on one line."""
    fault = status(502)
    fault.body, fault.headers = b"<html>\n" + b"<p>bad gateway</p>\n" * 100, {"Content-Type": "text/html"}
    server.always = lambda asked: fault
    with pytest.raises(ServiceError) as caught:
        connect(server.url, kind, tmp_path).channel.backend.send(question(0), "a key")
    assert "502" in caught.value.message and "\n" not in caught.value.message
    assert len(caught.value.message) <= 300
