"""`tools/pages.py` knows a page that is older than its code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """The tool in a repository of one page and its script."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools/pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "PAGES", {"page.md": ("make.py", ("make.py", "code"))})
    (tmp_path / "code").mkdir()
    (tmp_path / "page.md").write_text("# Figures\n")
    (tmp_path / "make.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return module


def git(folder, *words):
    names = ("-c", "user.name=n", "-c", "user.email=e@example.com")
    subprocess.run(["git", "-C", str(folder), *names, *words], check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "m")


def listed(pages, monkeypatch, capsys, *words):
    monkeypatch.setattr(sys, "argv", ["pages.py", *words])
    return pages.main(), capsys.readouterr().out


def test_a_page_is_stale_until_it_is_stamped_and_again_when_its_code_changes(pages, tmp_path, monkeypatch, capsys):
    status, out = listed(pages, monkeypatch, capsys)
    assert (status, out.splitlines()[-1]) == (1, "1 of 1 pages are stale")
    assert "page.md: is older than its code: python make.py, then" in out
    assert listed(pages, monkeypatch, capsys, "--stamp", "page.md") == (0, "")
    commit(tmp_path)
    assert listed(pages, monkeypatch, capsys) == (0, "0 of 1 pages are stale\n")
    (tmp_path / "code" / "of.py").write_text("2\n")
    commit(tmp_path)
    assert listed(pages, monkeypatch, capsys)[0] == 1
    assert listed(pages, monkeypatch, capsys, "--stamp", "page.md", "--at", "HEAD")[0] == 0
    assert listed(pages, monkeypatch, capsys)[0] == 0
    assert (tmp_path / "page.md").read_text().count("<!--") == 1


def test_every_page_and_path_is_there():
    """A path that moved would leave what it holds out of the hash, without a word."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools/pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for page, (command, paths) in module.PAGES.items():
        assert module.stamp_of(ROOT / page), page
        for path in (page, command.split()[0], *paths):
            assert (ROOT / path).exists(), path
