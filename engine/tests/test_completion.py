"""Completion of component names, as a shell asks for it."""

from __future__ import annotations

import pytest

from topoplan.cli import application
from topoplan_engine.completion import completion_of, models, names_of


def test_names_of_a_kind_are_completed():
    assert completion_of("topology")("topo") == ["topoopt"]
    assert "resnet50" in models("res")
    assert completion_of("budget") is None


def test_the_last_name_of_a_list_is_completed():
    assert completion_of("searcher")("mcmc,to") == ["mcmc,totientperm"]
    assert "bigswitch,fattree" in completion_of("networks")("bigswitch,")


def test_an_exporter_is_followed_by_its_path():
    assert names_of("exporter", "=")("flatb") == ["flatbuffer="]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("topoplan opt", ["optimize"]),
        ("topoplan optimize alexnet --patie", ["--patience"]),
        ("topoplan optimize alexnet -t topo", ["topoopt"]),
        ("topoplan compare alexnet -n bigswitch,fat", ["bigswitch,fattree"]),
    ],
)
def test_a_shell_gets_words(capsys, monkeypatch, words, completed):
    monkeypatch.setenv("_TOPOPLAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        application()(prog_name="topoplan")
    assert capsys.readouterr().out.split() == completed
