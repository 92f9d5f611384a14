"""An alarm reaches a command and a webhook, and neither a failure nor a slow answer ends or leaks anything."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support import planned

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.monitoring import alerts
from rlhf_lab.monitoring.settings import Alerts
from rlhf_lab.stages import preflight

ALARM = {"event": "hard_stop", "iteration": 7}


class Hook(BaseHTTPRequestHandler):
    """Answers with the status that its path names and keeps what was posted."""

    received: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append({"type": self.headers["Content-Type"], **json.loads(body)})
        if self.path == "/slow":
            time.sleep(0.5)
        self.send_response(int(self.path[1:]) if self.path[1:].isdigit() else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    Hook.received.clear()
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def test_a_command_gets_the_alarm_on_standard_input_and_its_failure_is_told(tmp_path: Path) -> None:
    file = tmp_path / "told.json"
    command = python(f"import sys; open({str(file)!r}, 'w').write(sys.stdin.read())")
    assert alerts.send(Alerts(command=command), ALARM) == []
    assert json.loads(file.read_text()) == ALARM
    (failure,) = alerts.send(Alerts(command=python("import sys; sys.exit('no mail today')")), ALARM)
    assert failure == f"alerts.command ({sys.executable}) ended with status 1: no mail today"
    (missing,) = alerts.send(Alerts(command=(str(tmp_path / "nothing"),)), ALARM)
    assert "did not start" in missing


def test_a_webhook_gets_the_alarm(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HOOK", f"{address}/204")
    assert alerts.send(Alerts(webhook_env="MY_HOOK"), ALARM) == []
    assert Hook.received == [{"type": "application/json", **ALARM}]


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "still-here"
    child = f"import time; time.sleep(1.5); open({str(mark)!r}, 'w')"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-S', '-c', {child!r}]); time.sleep(60)"
    started = time.monotonic()
    (failure,) = alerts.send(Alerts(command=python(code), timeout_s=0.7), ALARM)
    assert "took more than 0.7 s" in failure and time.monotonic() - started < 20
    time.sleep(1.5)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/500", "was answered with status 500"), ("/slow", "did not answer (not complete after 0.2 s)")],
)
def test_a_webhook_that_fails_is_told_without_its_address(
    address: str, path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_HOOK", f"{address}{path}")
    (failure,) = alerts.send(Alerts(webhook_env="MY_HOOK", timeout_s=0.2), ALARM)
    assert failure.startswith("alerts.webhook_env (MY_HOOK) ") and "127.0.0.1" not in failure
    assert reason in failure


@pytest.mark.parametrize("value", ["", "hooks.example/secret", "file:///etc/passwd", "https://secret host/x"])
def test_an_address_that_is_none_is_told_without_it(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HOOK", value)
    (failure,) = alerts.send(Alerts(webhook_env="MY_HOOK"), ALARM)
    assert "secret" not in failure and "passwd" not in failure


def test_what_is_told() -> None:
    alarm = alerts.Alarm(
        level="hard_stop",
        signals=("length_z", "reward_kl"),
        iteration=6,
        iterations=40,
        statistics={"length_z": 3.2, "reward_kl": float("nan")},
        action="pause",
        paused=True,
    )
    stated = alerts.payload(Path("outputs/runs/ppo-1-2"), {"recipe": "ppo", "key": "1-2"}, alarm)
    assert stated["event"] == "hard_stop" and stated["run"] == "ppo-1-2" and stated["recipe"] == "ppo"
    assert stated["iteration"] == 7 and stated["iterations"] == 40 and stated["paused"] is True
    assert stated["signals"] == ["length_z", "reward_kl"]
    assert stated["numbers"] == {"length_z": 3.2, "reward_kl": None}
    assert stated["report"].endswith("/outputs/runs/ppo-1-2/report.html") and stated["report"].startswith("/")
    json.dumps(stated, allow_nan=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"webhook_env": "https://hooks.example/secret"}, "must be the name of an environment variable"),
        ({"timeout_s": 0.0}, "timeout_s=0.0"),
        ({"levels": ()}, "levels is empty"),
        ({"command": ("",)}, "an empty word"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Alerts(**settings)
    assert "secret" not in str(caught.value)


def test_whom_to_tell_is_no_part_of_a_result() -> None:
    simple = planned("ppo")
    stated = planned("ppo", "alerts.command=[notify]", "alerts.continue_paused=true")
    assert simple.key == stated.key and stated.needs["policy"].config.alerts.continue_paused


def test_what_cannot_be_told_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    unreachable = ("alerts.webhook_env=NO_SUCH_HOOK", "alerts.command=[no-such-program]")
    for recipe in ("ppo", "dpo_iterative"):
        lines = preflight.problems(planned(recipe, *unreachable))
        assert any("NO_SUCH_HOOK is not set" in line for line in lines)
        assert any("no-such-program" in line for line in lines)
    assert not preflight.problems(planned("sft", *unreachable))
