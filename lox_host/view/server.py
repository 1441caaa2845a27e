"""Serve the page, read-only, on this machine unless the user names another address.

The same browser may have a hostile page open, which can send requests to this server. And a
store may come from a stranger. So the server has three lines of defence:

    Host and Origin     must be our own. A hostile page fails this check, even with a
                        domain name that points to this machine (DNS rebinding).
    a token             is required if other machines can reach the server.
    Content-Security-   lets the page load and run only the files of this folder. Texts
    Policy              from a store are shown as text and never become HTML.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import hmac
import json
import os
import secrets
import socket
import sys
import threading
import traceback
from typing import Any

import tornado.httpserver
import tornado.iostream
import tornado.web

from lox_host.view.export import export_html
from lox_host.view.page import index_html, script, style
from lox_host.view.panel_rows import Json
from lox_host.view.viewer import Viewer

PAUSE = 0.25  # seconds between two polls of the stores
BODY = 1 << 20  # the largest request, in bytes
LOOPBACK = ("127.0.0.1", "localhost", "::1")
COOKIE = "lox-token"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors "
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "lox",
    "X-Content-Type-Options": "nosniff",
}


class Server:
    """A server for one page.

    Args:
        viewer: Answers the requests of the page.
        host: The address to bind to.
        port: The port. 0: any free port.
        framed_by: Which pages may embed this one, in the syntax of `frame-ancestors`.

    Attributes:
        port: The port.
        url: The address to open in a browser.

    Raises:
        OSError: If the address or the port cannot be used. The text says what to do.
    """

    def __init__(
        self,
        viewer: Viewer,
        host: str = "127.0.0.1",
        port: int = 8642,
        *,
        framed_by: str = "'none'",
    ):
        self.viewer, self.framed_by = viewer, framed_by
        self._socket = _bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        is_local = host in LOOPBACK
        self.token = None if is_local else secrets.token_urlsafe(24)
        # A server on all addresses cannot know its names. It relies on the token.
        is_anywhere = host in ("0.0.0.0", "::", "")
        self.names = None if is_anywhere else {*LOOPBACK, host}
        shown = socket.gethostname() if is_anywhere else host
        shown = f"[{shown}]" if ":" in shown else shown
        query = "" if self.token is None else f"?token={self.token}"
        self.url = f"http://{shown}:{self.port}/{query}"
        self.threads = concurrent.futures.ThreadPoolExecutor(3, "lox-view")
        # A page asks for all its panels at once. If they were computed together, the first
        # would be done no sooner than the last. So they use half of the cores, and the
        # browser the others.
        cores = max(1, (os.cpu_count() or 1) // 2)
        self.panels = concurrent.futures.ThreadPoolExecutor(cores, "lox-view-panels")
        self.listeners: set[asyncio.Event] = set()

    async def serve(self, stop: asyncio.Event | None = None) -> None:
        """Serve until the event is set, or for ever."""
        routes: list[Any] = [
            (r"/", _Page),
            (r"/(app\.js|style\.css)", _File),
            (r"/api/(\w+)", _Api),
            (r"/events", _Events),
            (r"/export", _Export),
        ]
        settings = {"server": self, "compress_response": self.token is not None}
        app = tornado.web.Application(routes, default_handler_class=_Missing, **settings)
        http = tornado.httpserver.HTTPServer(app, max_body_size=BODY)
        http.add_socket(self._socket)
        look = asyncio.create_task(self._look())
        try:
            await (stop or asyncio.Event()).wait()
        finally:
            look.cancel()
            http.stop()
            await http.close_all_connections()
            for threads in (self.threads, self.panels):
                threads.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        """Poll for new rows, and wake up all pages when there are some."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PAUSE)
            try:
                is_new = await loop.run_in_executor(self.threads, self.viewer.catalog.poll)
            except OSError:
                continue  # a folder is gone; the next request of the page reports it
            if is_new:
                for listener in self.listeners:
                    listener.set()


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        OSError: If the address or the port cannot be used. The text says what to do.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"{host!r} is not an address of this machine.") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name != "nt":  # on Windows this lets two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            text = (
                f"Port {port} is taken, perhaps by another `lox view`. Use another one, "
                f"such as `--port {port + 1}`, or `--port 0` for any that is free."
            )
        elif error.errno == errno.EADDRNOTAVAIL:
            text = f"{host!r} is not an address of this machine."
        else:
            text = f"Cannot serve on {host}:{port}: {error.strerror}."
        raise OSError(text) from error
    return listener


class _Handler(tornado.web.RequestHandler):
    """Checks that a request is allowed before a subclass answers it."""

    @property
    def server(self) -> Server:
        return self.application.settings["server"]

    def set_default_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.set_header(name, value)
        policy = f"{_HEADERS['Content-Security-Policy']}{self.server.framed_by}"
        self.set_header("Content-Security-Policy", policy)

    def prepare(self) -> None:
        if not self._is_our_name(self.request.host):
            raise tornado.web.HTTPError(403, reason="Unknown host")
        origin = self.request.headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != self.request.host:
            raise tornado.web.HTTPError(403, reason="Another site")
        if self.server.token is None:
            return
        given = self.get_query_argument("token", None) or self.get_cookie(COOKIE) or ""
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            raise tornado.web.HTTPError(403, reason="No token")
        if self.get_cookie(COOKIE) != self.server.token:
            self.set_cookie(COOKIE, self.server.token, httponly=True, samesite="Strict")

    def _is_our_name(self, host: str) -> bool:
        """Return whether a Host header is our own. Foreign names may point here, too."""
        if self.server.names is None:
            return True
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        name = name or host
        is_port = not port or port == str(self.server.port)
        return is_port and name.strip("[]") in self.server.names

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        hints = {
            "No token": "Open the address that `lox view` printed: it has a token in it.",
            "Unknown host": "This is not the name that `lox view` is served under.",
        }
        self.finish(f"{status_code} {self._reason}. {hints.get(self._reason, '')}\n")


class _Missing(_Handler):
    def prepare(self) -> None:
        super().prepare()
        raise tornado.web.HTTPError(404)


class _Page(_Handler):
    def get(self) -> None:
        self.finish(index_html())


class _File(_Handler):
    def get(self, name: str) -> None:
        is_script = name == "app.js"
        kind = "text/javascript" if is_script else "text/css"
        self.set_header("Content-Type", f"{kind}; charset=utf-8")
        self.finish(script() if is_script else style())


class _Api(_Handler):
    """Answers a request of the page on a thread, so that others do not wait."""

    async def post(self, question: str) -> None:
        loop = asyncio.get_running_loop()
        status, text = 400, '{"error":"A question is an object in JSON."}'
        fields = _object(self.request.body)
        if fields is not None:
            viewer, threads = self.server.viewer, self.server.threads
            if question == "panel" and not viewer.is_known(question, fields):
                threads = self.server.panels
            ask = loop.run_in_executor(threads, self._answer, question, fields)
            status, text = await ask
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(text)

    def _answer(self, question: str, fields: Json) -> tuple[int, str]:
        try:
            found = self.server.viewer.answer(question, fields)
            return 200, json.dumps(found, separators=(",", ":"))
        except (LookupError, OSError, TypeError, ValueError) as error:
            text = error.args[0] if isinstance(error, KeyError) and error.args else error
            return 400, json.dumps({"error": str(text)})
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            return 500, json.dumps({"error": f"The viewer failed: {error!r}"})


def _object(text: bytes) -> Json | None:
    """Return the object that a request or an address has in JSON. None: it has none."""
    try:
        fields = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


class _Events(_Handler):
    """Tells an open page when there is something new."""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        event = asyncio.Event()
        self.server.listeners.add(event)
        try:
            while True:
                version = self.server.viewer.catalog.version
                self.write(f"data: {version}\n\n")
                await self.flush()
                # Without news, write a line now and then. That fails if the page is gone.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), 15)
                event.clear()
        except tornado.iostream.StreamClosedError:
            pass
        finally:
            self.server.listeners.discard(event)


class _Export(_Handler):
    """Sends the page as one file, in its current state."""

    async def get(self) -> None:
        fields = _object(self.get_query_argument("state", "{}").encode())
        if fields is None:
            raise tornado.web.HTTPError(400, reason="No such state")
        loop = asyncio.get_running_loop()
        html = await loop.run_in_executor(
            self.server.threads, export_html, self.server.viewer, fields
        )
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Disposition", 'attachment; filename="lox-report.html"')
        self.finish(html)


def run_server(server: Server) -> None:
    """Serve until Ctrl-C."""
    asyncio.run(server.serve())


# The pages that may embed the viewer: a notebook server on this machine, or an editor.
_NOTEBOOKS = "http://localhost:* http://127.0.0.1:* https://localhost:* vscode-webview:"


def serve_in_thread(viewer: Viewer) -> str:
    """Serve for a notebook while this process lives, and return the URL."""
    viewer.prepare()
    server = Server(viewer, port=0, framed_by=_NOTEBOOKS)
    threading.Thread(target=run_server, args=[server], daemon=True).start()
    return server.url
