"""An S3-compatible server on this machine, and a proxy that makes it fail in all ways."""

import contextlib
import http.client
import http.server
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter


class ObjectServer:
    """moto's server, in a process of its own."""

    def __init__(self):
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1"]
        self._process = subprocess.Popen(
            [*command, "-p", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.url = f"http://127.0.0.1:{self.port}"
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.url}/moto-api/", timeout=5).close()
                return
            time.sleep(0.1)
        raise RuntimeError("The object server does not start.")

    def make_bucket(self, name):
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()

    def close(self):
        self._process.kill()
        self._process.wait()


class Proxy:
    """Stands before a server, and passes requests on, or does not.

    `mode` is one of: `""` (pass on), `"refuse"` (403, as for credentials that have
    expired), `"throttle"` (503), `"no bucket"` (404), `"slow"` (a second per request),
    `"cut"` (close the connection in the middle of the answer, after the server has done
    what it was asked for). `stop` and `start` take it from the network altogether.
    """

    def __init__(self, server):
        self.target, self.port, self.mode = server.port, free_port(), ""
        self.requests, self.bytes_put, self.objects_put = Counter(), Counter(), Counter()
        self._http = None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        if self._http is None:
            handler = type("Handler", (_Handler,), {"proxy": self})
            self._http = _Server(("127.0.0.1", self.port), handler)
            threading.Thread(target=self._http.serve_forever, args=(0.05,)).start()

    def stop(self):
        if self._http is not None:
            http, self._http = self._http, None
            http.shutdown()
            http.server_close()
            http.close_connections()

    close = stop


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads, request_queue_size, allow_reuse_address = True, 256, True

    def __init__(self, *args):
        super().__init__(*args)
        self._connections = set()

    def process_request(self, request, address):
        self._connections.add(request)
        super().process_request(request, address)

    def close_connections(self):
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, *_):
        pass  # a client that went away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *_):
        pass

    def _handle(self):
        proxy, mode = self.proxy, self.proxy.mode
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        answers = {
            "refuse": (403, "ExpiredToken"),
            "throttle": (503, "SlowDown"),
            "no bucket": (404, "NoSuchBucket"),
        }
        if mode in answers:
            status, code = answers[mode]
            return self._answer(status, f"<Error><Code>{code}</Code></Error>".encode(), [])
        if mode == "slow":
            time.sleep(1)
        proxy.requests[self.command] += 1
        if self.command == "PUT":
            proxy.bytes_put[self.path] += length
            proxy.objects_put[self.path] += 1
        connection = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=60)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data, headers = answer.read(), answer.getheaders()
        connection.close()
        if mode == "cut":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return None
        return self._answer(answer.status, data, headers)

    def _answer(self, status, data, headers):
        self.send_response_only(status)
        skipped = {"content-length", "connection", "transfer-encoding"}
        length = str(len(data))
        for name, value in headers:
            if self.command == "HEAD" and name.lower() == "content-length":
                length = value
            if name.lower() not in skipped:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _handle


def environment(url, folder):
    """The environment of a process that writes to, or reads from, a server."""
    folder = pathlib.Path(folder)
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "LOX_SPOOL": str(folder / "spool"),
        "LOX_CACHE": str(folder / "cache"),
        "LOX_UPLOAD_EVERY": "0.2",
    }


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


REPO = os.fspath(pathlib.Path(__file__).parents[2])
