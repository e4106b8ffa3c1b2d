"""Printed JSON: what was given, with long lists of integers on one line."""

from __future__ import annotations

import json

import pytest

from topoplan_engine.reporting.printing import print_json


@pytest.mark.parametrize("length", [3, 1000, 1001, 5000])
def test_json_is_what_was_given(length, capsys):
    value = {"devices": list(range(length)), "rows": [{"a": [1.5] * length, "b": list(range(length)), "c": "\\u00001"}]}
    print_json(value)
    text = capsys.readouterr().out
    assert json.loads(text) == value
    assert (text.count("\n") > 2 * length) == (length <= 1000) or length < 10
    assert text.startswith('{\n  "devices": [')
