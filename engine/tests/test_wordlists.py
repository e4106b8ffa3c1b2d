"""Lists on the command line, and the message for a wrong one."""

from __future__ import annotations

import pytest

from topoplan import TopoplanError
from topoplan_engine.wordlists import listed, listed_components, pairs


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
