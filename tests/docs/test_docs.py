"""README and pages: all examples are run, links lead somewhere, the API is there."""

import doctest
import fnmatch
import inspect
import pathlib
import re
import tomllib

import pytest

import lox

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
# What is in a block that is not Python.
OTHERS = ("console", "sql", "text", "{")
BLOCK = re.compile(r"^(```+|:::+)[ ]*(\S*).*?\n(.*?)^\1[ ]*$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_all_code_is_run(page, pytestconfig):
    text = page.read_text()
    patterns = pytestconfig.getoption("doctestglob")
    assert any(fnmatch.fnmatch(page, f"*/{pattern}") for pattern in patterns)
    assert any(page.is_relative_to(ROOT / p) for p in pytestconfig.getini("testpaths"))

    for _, language, code in BLOCK.findall(text):
        assert language == "pycon" or language.startswith(OTHERS), f"not run:\n{code}"
        assert language != "pycon" or code.startswith(">>> "), f"not run:\n{code}"
    examples = doctest.DocTestParser().get_examples(text)
    assert len(examples) == len(re.findall("^ *>>>", text, re.MULTILINE))
    assert not any(doctest.SKIP in example.options for example in examples)


def test_the_pages_of_the_cookbook_run_in_an_environment(pytestconfig):
    pages = {page.stem for page in ROOT.glob("docs/cookbook/*.md")}
    [cookbook] = [
        plugin.COOKBOOK
        for plugin in pytestconfig.pluginmanager.get_plugins()
        if hasattr(plugin, "COOKBOOK")
    ]
    assert pages == set(cookbook)

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [libraries] = re.findall(r"^LIBRARIES := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    names = [re.match(r"[\w-]+", entry) for entry in extras(project, "dev")]
    environments = [{name[0] for name in names if name}, set(libraries.split())]
    for page, packages in cookbook.items():
        assert any(set(packages) <= installed for installed in environments), page


def extras(project: dict, name: str) -> list[str]:
    """Return the requirements of an extra, with those of the extras that it names."""
    found = []
    for entry in project["optional-dependencies"][name]:
        others = re.fullmatch(r"jax-lox\[(.*)\]", entry)
        parts = others[1].split(",") if others else []
        found += [entry] + [each for part in parts for each in extras(project, part)]
    return found


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in link or (ROOT / link).exists()


@pytest.mark.parametrize("module", [lox, lox.loggers], ids=lambda module: module.__name__)
def test_all_of_the_api_is_described(module):
    pages = "".join(page.read_text() for page in sorted(ROOT.glob("docs/api/*.md")))
    sections = pages.split(".. currentmodule:: ")
    own = "".join(s for s in sections if s.startswith(f"{module.__name__}\n"))
    described = re.findall(r":: (\w+)\b", own)

    names = getattr(module, "__all__", vars(module))
    public = {name for name in names if not name.startswith("_")}
    modules = {name for name in public if inspect.ismodule(getattr(module, name))}
    assert public - modules <= set(described)
