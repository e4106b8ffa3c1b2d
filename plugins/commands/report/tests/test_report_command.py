"""Pages of one plan and of several, from the command line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from topoplan import Host, TopoplanError
from topoplan.testing import reference
from topoplan_command_report import Report
from topoplan_engine.experiment import outputs_from
from topoplan_engine.exporting import write_outputs


@pytest.fixture
def files(tmp_path):
    host = Host.discover()
    for name, plan in (("a", reference.plan()), ("b", reference.pipelined())):
        assert not write_outputs(host, plan, outputs_from([f"json={tmp_path / name}.json"])).refused
    return tmp_path


def run(*words):
    return CliRunner().invoke(Report().app(), [str(word) for word in words])


def test_several_plans_in_one_page(files):
    page = files / "both.html"
    found = run(files / "a.json", files / "b.json", "-o", page)
    assert found.exit_code == 0, found.output
    assert found.stdout == f"report written to {page}\n"
    assert "<title>2 plans</title>" in page.read_text(encoding="utf-8")


def test_the_page_is_opened(files, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert run(files / "a.json", "-o", files / "a.html", "--open").exit_code == 0
    assert opened == [(files / "a.html").as_uri()]


def test_without_a_browser_the_file_is_named(files, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    found = run(files / "a.json", "-o", files / "a.html", "--open")
    assert found.exit_code == 0
    assert f"no browser was found: open {files / 'a.html'}" in found.stderr


def test_a_damaged_plan_leaves_nothing_written(files):
    (files / "c.json").write_text("{", encoding="utf-8")
    found = run(files / "a.json", files / "c.json", "-o", files / "c.html")
    assert isinstance(found.exception, TopoplanError)
    assert "c.json" in str(found.exception)
    assert not (files / "c.html").exists()
