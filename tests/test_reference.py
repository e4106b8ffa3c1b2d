"""The reference pages are what the sources say, and their examples run."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path

import pytest

import topoplan
import topoplan.testing
from topoplan import Host
from topoplan_studies.prices import default_prices
from topoplan_studies.runspecs import run_specs
from topoplan_studies.study import study_from

ROOT = Path(__file__).parents[1]
API, STUDY = ROOT / "docs/reference/api.md", ROOT / "docs/reference/study.md"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_sources_say(reference):
    """`python tools/reference.py` writes them."""
    assert API.read_text() == reference.api()
    assert STUDY.read_text() == reference.study_page()


def test_examples_of_the_api_run(reference):
    text = "\n".join(re.findall(r"^```pycon\n(.*?)^```", API.read_text(), re.MULTILINE | re.DOTALL))
    names = {name: getattr(topoplan, name) for name in topoplan.__all__}
    names |= {name: getattr(topoplan.testing, name) for name in reference.KIT_NAMES}
    test = doctest.DocTestParser().get_doctest(text, names, "api.md", str(API), 0)
    assert len(test.examples) > 20
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_every_name_has_one_example(reference):
    """In its docstring or in the file of examples, which has none of other names."""
    public = {name for name in topoplan.__all__ if not name.startswith("__")}
    documented = {name for name in public if ">>>" in (getattr(topoplan, name).__doc__ or "")}
    assert set(reference.examples()) == public - documented | set(reference.KIT_NAMES)


def test_every_entry_shows_its_example_as_code():
    """Outside of a block of code, Markdown takes ``>>>`` for a quotation, and no test runs it."""
    sections = re.split(r"^##+ ", API.read_text(), flags=re.MULTILINE)[1:]
    code = re.compile(r"^```pycon\n.*?^```", re.MULTILINE | re.DOTALL)
    assert [text.partition("\n")[0] for text in sections if not code.search(text)] == ["GraphBuilder"]
    assert [text.partition("\n")[0] for text in sections if ">>>" in code.sub("", text)] == []


def test_types_on_the_page_of_studies_are_no_classes_of_python():
    assert "<class" not in STUDY.read_text()


def test_the_example_of_a_study_is_one():
    import tomllib

    (text,) = re.findall(r"^```toml\n(.*?)^```", STUDY.read_text(), re.MULTILINE | re.DOTALL)
    study = study_from(tomllib.loads(text), "example", "example.toml")
    assert len(run_specs(study, Host.discover(), default_prices(), None)) == 2 * 2 * 2  # degrees, networks, seeds


def test_every_key_of_a_study_stands_in_its_reference(reference):
    """A section or key that the reader takes is on the page."""
    page, study = STUDY.read_text(), reference.study
    settings = [field.name for field in reference.attrs.fields(study._Settings)]
    for key in (*study._LISTS, *study._TABLES, *study._VARY, *study._RUN, *settings, *reference.COLUMNS, "costs-as"):
        assert re.search(rf"[`\[]{re.escape(key)}[`\]]", page), key
