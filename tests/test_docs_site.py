"""The documentation site has a page for every component and every document, and no link leads nowhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from topoplan import Host
from topoplan.plugin.components import Kind

ROOT = Path(__file__).resolve().parents[1]


def load(file):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


docs_site = load(ROOT / "tools/docs_site.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    docs_site.write(ROOT, folder, Host.discover())
    return folder


def test_every_component_has_a_page_with_its_options(site):
    host = Host.discover()
    for row in host.listing():
        text = (site / f"pages/components/{docs_site.plural(Kind(row.kind))}/{row.name}.md").read_text()
        assert row.summary.replace("|", "\\|") in text or row.summary in text
    fattree = (site / "pages/components/topologies/fattree.md").read_text()
    assert "| `oversubscription` |" in fattree


def test_the_navigation_has_every_page(site):
    config = (site / "mkdocs.yml").read_text()
    entries = re.findall(r"^ +- (\S+\.md)$", config, re.M)
    named = set(entries)
    assert len(entries) == len(named)
    there = {str(path.relative_to(site / "pages")) for path in (site / "pages").rglob("*.md")}
    # decisions and libraries have a page that lists them
    assert {page for page in there - named if not page.startswith(("decisions/", "libraries/"))} == set()
    assert named - there == set()


def test_every_kind_has_a_guide():
    assert all((ROOT / f"docs/plugins/{kind.value}.md").is_file() for kind in Kind)


def test_links_lead_to_pages_and_copies_of_files(site):
    for page in (site / "pages").rglob("*.md"):
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\((?!\w+:|#)([^)\s#]+)", text):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    page = docs_site.Page("index.md", "README.md", "See [this](docs/nothing.md).")
    with pytest.raises(docs_site.DeadLinkError, match=r"README.md: the link 'docs/nothing.md' leads nowhere"):
        docs_site.linked(page, {}, tmp_path, {})


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site):
    process = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "-f", str(site / "mkdocs.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    loaded = re.compile(r'<(?:script|img|iframe)[^>]+src="https?://|<link[^>]+rel="stylesheet"[^>]+"https?://')
    assert [page for page in (site / "html").rglob("*.html") if loaded.search(page.read_text())] == []
