"""Lists on the command line, and the message for a wrong one."""

from __future__ import annotations

import pytest

from topoplan import TopoplanError
from topoplan_engine.wordlists import listed, listed_components, output_and_path, pairs


def test_lists_have_brackets_or_none():
    assert listed("[1, 2]") == listed("1,2") == ["1", "2"]
    assert pairs(["a=1", "b=x=y"], "-o") == {"a": "1", "b": "x=y"}
    assert listed_components(["a:k=1,l=2,b", "c"], "-n") == ["a:k=1,l=2", "b", "c"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a"], "-o 'a': expected KEY=VALUE"),
        (["a="], "-o 'a=': expected KEY=VALUE"),
        (["a=1", "a=2"], "-o 'a=2': 'a' is given twice"),
    ],
)
def test_what_is_no_pair_is_refused(texts, message):
    with pytest.raises(TopoplanError, match=message):
        pairs(texts, "-o")


@pytest.mark.parametrize(
    ("text", "message"), [("a,,b", "nothing stands before or behind a comma"), ("a,k=1", r"follow a colon \(a:k=1\)")]
)
def test_what_is_no_list_of_components_is_refused(text, message):
    with pytest.raises(TopoplanError, match=message):
        listed_components([text], "-n")


@pytest.mark.parametrize("text", ["\x01" * 500 + ",,", "\x01" * 500 + ",k=" + "v" * 500])
def test_long_components_are_cut_in_messages(text):
    with pytest.raises(TopoplanError) as refused:
        listed_components([text], "-n")
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("json=plan.json", "json", "plan.json"),
        ("json=a=b:c,d.json", "json", "a=b:c,d.json"),
        ("perfetto:format=json=plan.json", "perfetto:format=json", "plan.json"),
        ("x:a=1,b=two=/tmp/c=d,e:f", "x:a=1,b=two", "/tmp/c=d,e:f"),
        ("x:a==plan", "x:a=", "plan"),
    ],
)
def test_outputs_are_split_before_their_path(text, name, path):
    assert output_and_path(text) == (name, path)


@pytest.mark.parametrize(
    "text", ["", "json", "json=", "=plan", "x:", "x:a", "x:a=1", "x:a=1,b=plan", "x:a=1=", "x:=1=plan", "x:a=1,=2=plan"]
)
def test_outputs_without_a_path_are_refused(text):
    with pytest.raises(TopoplanError, match=r"^-x .*expected EXPORTER"):
        output_and_path(text)
