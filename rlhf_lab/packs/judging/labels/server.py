"""HTTP server of the labelling page, for this machine and for requests with the token.

Starlette and uvicorn, bound to 127.0.0.1. The token appears only in the URL that the console prints. The page sends it
in a header with every request, which a page of another origin cannot do. There is no cookie, because cookies ignore the
port and would be sent to every other server of this machine. A request without the token, for another host (DNS
rebinding) or with a long body gets an empty 404.
"""

from __future__ import annotations

import secrets
import socket
import sqlite3
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.core.text import is_well_formed
from rlhf_lab.figures.palette import DARK, LIGHT
from rlhf_lab.packs.judging.labels.session import LabelSession
from rlhf_lab.packs.judging.labels.store import OutOfDate

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingDependency(*OPTIONAL["starlette"]) from error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
TOKEN_HEADER = "x-label-token"
MOST_BYTES = 10_000
"""Maximum size of a request's body in bytes; an answer has about 200."""
MOST_SECONDS = 86_400.0
"""Maximum recorded time of an answer in seconds. Longer times mean that the page was left open."""
MOST_ID = 2**63 - 1
"""Maximum number of an event, the largest integer of SQLite."""
CHOICES = ("1", "2", "tie", "skip")
TEMPLATES = Path(__file__).parent / "templates"
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",  # the URL has the token
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """Middleware that admits requests with the token for this host. Any other request gets an empty 404.

    Args:
        hosts: accepted Host headers, such as 127.0.0.1:8000.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: tuple[str, ...]):
        self.app = app
        self.token = token.encode()
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._admits(scope):
            await Response(status_code=404)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _admits(self, scope: Scope) -> bool:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        # DNS rebinding: another name for this machine would make a foreign page same-origin
        if headers.get(b"host") not in self.hosts:
            return False
        if scope["method"] == "POST" and not _is_short(headers.get(b"content-length", "")):
            return False
        provided = headers.get(TOKEN_HEADER.encode(), "")
        # the browser itself makes the first request, and can send the token only in the URL
        if (scope["method"], scope["path"]) == ("GET", "/"):
            provided = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        # constant time, so that response times do not reveal the token
        return secrets.compare_digest(provided.encode(), self.token)


def _is_short(length: str) -> bool:
    return length.isdecimal() and int(length) <= MOST_BYTES


def build_app(session: LabelSession, token: str, port: int, export_command: str) -> ASGIApp:
    """Return the web application of the page, wrapped in `Guard`, which admits only requests with the token."""

    async def page(request: Request) -> Response:
        # only the page's own script and style, which carry the nonce, may run
        nonce = secrets.token_urlsafe(16)
        text = _template().render(
            nonce=nonce, token=token, annotator=session.annotator, judge=session.judge, export_command=export_command
        )
        return HTMLResponse(text, headers={"content-security-policy": POLICY.format(nonce=nonce)})

    async def state(request: Request) -> Response:
        return JSONResponse(session.state())

    async def figures(request: Request) -> Response:
        return JSONResponse(session.figures())

    async def answer(request: Request) -> Response:
        sent = await _body(request, event=str, item=str, choice=str, seconds=(int, float))
        if sent is None or sent["choice"] not in CHOICES:
            return _refusal("an answer is {event, item, choice, seconds}", 400)
        # clip before converting: an integer with many digits does not fit a float
        seconds = float(min(max(0, sent["seconds"]), MOST_SECONDS))
        return _saved(session, lambda: session.answer(sent["event"], sent["item"], sent["choice"], seconds))

    async def undo(request: Request) -> Response:
        sent = await _body(request, event=str, undoes=int)
        if sent is None or not 0 <= sent["undoes"] <= MOST_ID:
            return _refusal("an undo is {event, undoes}", 400)
        return _saved(session, lambda: session.undo(sent["event"], sent["undoes"]))

    routes = [
        Route("/", page),
        Route("/state", state),
        Route("/figures", figures),
        Route("/answer", answer, methods=["POST"]),
        Route("/undo", undo, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), token, (f"{HOST}:{port}", f"localhost:{port}"))


async def _body(request: Request, **types: Any) -> dict[str, Any] | None:
    """Return the fields of a JSON body; None if one is missing or has another type."""
    try:
        sent = await request.json()
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return None
    if not isinstance(sent, dict):
        return None
    has_types = [isinstance(sent.get(name), kind) for name, kind in types.items()]
    if not all(has_types):
        return None
    if is_well_formed({name: sent[name] for name in types}):
        return sent
    return None


def _saved(session: LabelSession, save: Callable[[], None]) -> Response:
    try:
        save()
    except OutOfDate as reason:
        return JSONResponse({"error": str(reason), "state": session.state()}, 409)
    except sqlite3.Error as error:  # the disk is full or gone, or another process has locked the file
        return _refusal(f"{session.store.path.name} cannot be written ({error})", 503)
    return JSONResponse({"state": session.state()})


def _refusal(reason: str, status: int) -> Response:
    return JSONResponse({"error": reason}, status)


@cache
def _template() -> Any:
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    environment.globals.update(light=Markup(LIGHT), dark=Markup(DARK))
    return environment.get_template("label.html.j2")


def serve(session: LabelSession, *, port: int | None, export_command: str, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or SIGTERM, at a free port if None. `announce` receives the URL with the token."""
    listener = _listen(port)
    actual_port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    app = build_app(session, token, actual_port, export_command)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # the token must not reach a log
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )
    try:
        announce(f"http://{HOST}:{actual_port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:  # Ctrl-C stops the server; uvicorn has shut down and raises the signal again
        pass
    finally:
        listener.close()


def _listen(port: int | None) -> socket.socket:
    """Return a listening socket that only this machine can reach. Raises ConfigError if the port is taken."""
    listener = socket.socket()
    # a restart may reuse the port at once
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port or 0))
    except OSError as error:
        listener.close()
        raise ConfigError(f"port={port}: {error.strerror}; choose another, or leave it out for a free one") from error
    listener.listen()  # a browser may connect from now on; it waits until the server answers
    return listener
