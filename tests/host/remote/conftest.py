"""A server of object storage for the tests of this folder, with a bucket for each."""

import importlib.util
import itertools as it
import re

import pytest

from support.object_server import ObjectServer, Proxy, environment

# Where the packages are not installed, such as beside an older JAX, there is nothing here.
NEEDED = ("duckdb", "moto", "obstore", "opentelemetry", "polars", "pyarrow")
if not all(map(importlib.util.find_spec, NEEDED)):
    collect_ignore_glob = ["test_*.py"]

_number = it.count()


@pytest.fixture(scope="session")
def server():
    server = ObjectServer()
    yield server
    server.close()


@pytest.fixture
def proxy(server, request):
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def url(server, proxy, tmp_path, monkeypatch, request):
    """The address of a store that is not there yet, in a bucket of its own."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    bucket = f"{words}-{next(_number)}"
    server.make_bucket(bucket)
    for name, value in environment(proxy.url, tmp_path).items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/exp1"
