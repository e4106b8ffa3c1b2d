"""Hints: what they allow is all that a program may do, and what they cannot mean is refused in one line."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, shard
from topoplan_reference.hidup import search
from topoplan_samples.problems import program_problem
from topoplan_spmd_planning.hints import Hints, read_hints, sharding_of
from topoplan_spmd_planning.planning import plan
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import write_down
from topoplan_spmd_planning.released import released

FORMS = {
    "full": REPLICATED,
    "reduce": PARTIAL,
    "replicate": PENDING_GRADIENT,
    "gather_0": shard(0),
    "gather_12": shard(12),
}


def program(problem=None):
    return write_down((problem or program_problem()).graph, released)


def read(tmp_path, text):
    path = tmp_path / "hints.toml"
    path.write_text(text, encoding="utf-8")
    return read_hints(path)


def test_words_are_those_that_shardings_are_written_in():
    for text, form in FORMS.items():
        assert sharding_of(text) == form
        assert str(form) == text
    for text in ("gather", "gather_", "gather_-1", "gather_٣", "gather_1000", "full_0", "", "F", "Full", "reduce "):
        assert sharding_of(text) is None


def test_only_what_is_named_is_restricted(tmp_path):
    whole = program()
    less = read(tmp_path, 'linear2 = ["gather_1"]\n"*.kernel" = ["replicate", "gather_1"]').restricted(whole)
    changed = {old.name for old, new in zip(whole.instructions, less.instructions, strict=True) if old != new}
    assert changed == {"linear2", "linear1.kernel", "linear2.kernel"}
    for old, new in zip(whole.instructions, less.instructions, strict=True):
        assert list(new.signatures) == [rule for rule in old.signatures if rule in new.signatures]
    named = {
        each.name: [str(rule.outputs[0]) for rule in each.signatures] for each in less.instructions if each.outputs
    }
    assert set(named["linear2"]) == {"gather_1"}
    assert named["linear1.kernel"] == ["replicate", "gather_1"]
    assert read_hints(Path()).restricted(whole) == whole


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_plan_is_the_best_that_the_hints_allow(data):
    problem = program_problem()
    whole = program(problem)
    named = {each.name: each for each in whole.instructions if each.outputs}
    allowed = {}
    for name in data.draw(st.sets(st.sampled_from(sorted(named)), max_size=3)):
        forms = list(dict.fromkeys(rule.outputs[0] for rule in named[name].signatures))
        allowed[name] = tuple(data.draw(st.sets(st.sampled_from(forms), min_size=1)))
    less, prices = Hints("hints", allowed).restricted(whole), Prices(problem)
    try:
        objective = search(less, prices).objective
    except KeyError:  # the end has no state: what is allowed leads nowhere
        with pytest.raises(TopoplanError, match="no plan leads to its loss"):
            plan(less, prices, max_states=100_000, model="m")
        return
    found = plan(less, prices, max_states=100_000, model="m")
    assert found.outcome.objective == objective
    made = {
        less.instructions[number].name: rule.outputs for stage in found.stages for number, rule in stage.computations
    }
    for name, forms in allowed.items():
        assert made[name][0] in forms


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('linear3 = ["full"]', r"hints\.toml: no operator or tensor is named 'linear3'; did you mean 'linear\d'\?"),
        ('"x*" = ["full"]', r"hints\.toml: no operator or tensor is named 'x\*' \(have: .*linear1.*\)"),
        ('output = ["reduce"]', r"hints\.toml: no operator or tensor is named 'output'"),
        ('linear1 = ["gather_7"]', r"hints\.toml: 'linear1' cannot be gather_7 \(it can be .*gather_0.*full\)"),
        ('linear1 = ["gather_0"]\n"lin*1" = ["full"]', r"'linear1' cannot be full \(it can be gather_0\)"),
        ('linear1 = ["sliced"]', r"hints\.toml: 'linear1': 'sliced' is no sharding \(gather_N .*replicate\)"),
        ("linear1 = [1, 2]", r"hints\.toml: 'linear1': '1' is no sharding"),
        (
            'linear1 = "full"',
            r"hints\.toml: 'linear1': expected a list of shardings such as \[\"gather_0\"\], got 'full'",
        ),
        ("linear1 = []", r"expected a list of shardings"),
        ('linear1.kernel = ["full"]', r"'linear1': expected a list of shardings, got a table \(write .* in quotes\)"),
        ("linear1 = [", r"hints\.toml: is not TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, text, message):
    with pytest.raises(TopoplanError) as refused:
        read(tmp_path, text).restricted(program())
    assert re.search(message, str(refused.value))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TopoplanError, match="cannot be read"):
        read_hints(tmp_path / "none.toml")


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(codec="utf-8"), max_size=40)
    | st.builds('"{}" = ["{}"]'.format, st.text("*linear12.k[?", max_size=8), st.text("gather_01ful", max_size=8))
)
def test_whatever_a_file_says_is_read_or_refused(text):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TopoplanError):
        restricted = read(Path(folder), text).restricted(program())
        assert all(each.signatures for each in restricted.instructions)
