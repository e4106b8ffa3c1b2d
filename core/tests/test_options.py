"""Options: from text and TOML values to typed, checked, documented fields."""

from __future__ import annotations

from typing import Literal

import attrs
import pytest

from topoplan import TopoplanError, option
from topoplan.options import describe, parse_component, structure


@attrs.frozen(kw_only=True)
class Sample:
    """Options of every type."""

    count: int = option(3, help="how many", minimum=1, maximum=9)
    share: float = option(0.5, help="a part", above=0)
    mode: Literal["fast", "slow"] = option("fast", help="how")
    flag: bool = option(False, help="whether")
    layer_sizes: tuple[int, ...] = option((4, 2), help="widths", minimum=1)
    file: str | None = option(None, help="where", unit="path")


def test_text_and_toml_values_give_the_same():
    text = {"count": "5", "share": "0.25", "mode": "slow", "flag": "true", "layer-sizes": "1024-1", "file": "a.json"}
    toml = {"count": 5, "share": 0.25, "mode": "slow", "flag": True, "layer_sizes": [1024, 1], "file": "a.json"}
    assert structure(Sample, text, "x") == structure(Sample, toml, "x")
    assert structure(Sample, {}, "x") == Sample()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cout": 3}, "x: no option 'cout'; did you mean 'count'?"),
        ({"count": "many"}, "x: count: expected integer, got 'many'"),
        ({"count": 2.5}, "x: count: expected integer, got 2.5"),
        ({"count": True}, "x: count: expected integer, got True"),
        ({"count": 0}, "x: count: 0 is too small (at least 1)"),
        ({"count": 10}, "x: count: 10 is too large (at most 9)"),
        ({"share": "0"}, "x: share: 0.0 is too small (more than 0)"),
        ({"share": "nan"}, "x: share: expected number, got 'nan'"),
        ({"mode": "medium"}, "x: mode: 'medium' is none of fast, slow"),
        ({"flag": "maybe"}, "x: flag: expected true|false, got 'maybe'"),
        ({"layer-sizes": "4-x"}, "x: layer-sizes (integer-integer-...): expected integer, got 'x'"),
        ({"layer-sizes": "4-0"}, "x: layer-sizes: 0 is too small (at least 1)"),
    ],
)
def test_a_wrong_value_names_key_and_remedy(given, message):
    with pytest.raises(TopoplanError) as caught:
        structure(Sample, given, "x")
    assert str(caught.value) == message


def test_component_texts():
    assert parse_component("mcmc", "-s") == ("mcmc", {})
    assert parse_component("mcmc:alpha=2,spread=0.5", "-s") == ("mcmc", {"alpha": "2", "spread": "0.5"})
    assert parse_component("measured:file=/a/b=c.json", "-e") == ("measured", {"file": "/a/b=c.json"})
    with pytest.raises(TopoplanError, match="'alpha' is not key=value"):
        parse_component("mcmc:alpha", "-s")
    with pytest.raises(TopoplanError, match="'a' is given twice"):
        parse_component("mcmc:a=1,a=2", "-s")


def test_description_has_everything_that_help_shows():
    rows = {row.key: row for row in describe(Sample)}
    assert rows["layer-sizes"].default == "4-2"
    assert rows["mode"].type == "fast|slow"
    assert rows["file"].unit == "path"
    assert rows["flag"].default == "false"
    assert all(row.help for row in rows.values())


@pytest.mark.parametrize("text", ["\x00" * 400, "\n" * 5000, "x" * 5000])
def test_a_message_has_at_most_a_thousand_characters(text):
    assert len(str(TopoplanError(f"where: {text}"))) <= 1000


def test_an_option_is_read_under_its_older_name():
    renamed = attrs.make_class("Renamed", {"shortlist": option(3, help="plans", formerly="finalists")})
    renamed.__annotations__ = {"shortlist": int}
    assert structure(renamed, {"finalists": "5"}, "searcher s") == renamed(shortlist=5)
    assert [row.key for row in describe(renamed)] == ["shortlist"]
    with pytest.raises(TopoplanError, match="shortlist: is given twice"):
        structure(renamed, {"finalists": 5, "shortlist": 5}, "searcher s")
    with pytest.raises(TopoplanError, match="searcher s: finalists: expected integer, got 'x'"):
        structure(renamed, {"finalists": "x"}, "searcher s")
