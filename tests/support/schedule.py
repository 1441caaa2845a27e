"""Which process runs a test: tests that share work run in one, and long ones start first.

A test says what it shares by the mark `xdist_group`. xdist appends the group to the test's
id, which is how its scheduler learns of it; since pytest 9.2 ids can no longer be changed,
and xdist 3.8 silently groups nothing. Here the first worker writes the groups to a file.
"""

import functools as ft
import json
import pathlib
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes ten seconds or more, so starts first")
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        config.groups_file = pathlib.Path(folder.name) / "groups.json"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["groups_file"] = str(node.config.groups_file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", {})
    if worker.get("workerid") == "gw0":
        groups = {item.nodeid: group_of(item) for item in session.items}
        pathlib.Path(worker["groups_file"]).write_text(json.dumps(groups))


def group_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return mark.args[0] if mark else item.nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    @ft.cache
    def groups() -> dict[str, str]:
        return json.loads(config.groups_file.read_text())

    class GroupScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return groups()[nodeid]

    return GroupScheduling(config, log)
