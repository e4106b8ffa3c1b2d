"""The search: kernel against plain reference, plans that are what they say, and what is refused."""

from __future__ import annotations

import contextlib
import re

import attrs
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, Signature, shard
from topoplan_engine.sharding.resharding import convert
from topoplan_operators import GraphBuilder, losses
from topoplan_reference.hidup import search
from topoplan_samples.problems import program_problem, star_problem
from topoplan_spmd_planning import counting, planning, repeats
from topoplan_spmd_planning.columns import LONGEST, columns_of
from topoplan_spmd_planning.kernel import OVER_BEAM, expand, stack_for
from topoplan_spmd_planning.planning import plan
from topoplan_spmd_planning.prices import Prices, shares_work
from topoplan_spmd_planning.program import Instruction, Program, Value, Verb, fits, write_down
from topoplan_spmd_planning.proposing import plan_of
from topoplan_spmd_planning.released import released
from topoplan_spmd_planning.repeats import empty_repeats, equal_cuts
from topoplan_spmd_planning.tables import EACH, STATES, empty_tables, thin

FORMS = (REPLICATED, PARTIAL, shard(0), shard(1))


class Prize:
    """Prices without rhyme or reason, but always the same."""

    def __init__(self, seed):
        self.seed = seed

    def _draw(self, *what):
        return hash((self.seed, *what)) % 1009 / 64

    def compute(self, instruction, signature):
        return self._draw(instruction.outputs, len(signature.inputs), signature.outputs[0].axis, shares_work(signature))

    def conversion(self, nbytes, source, target):
        if convert(source, target) is None:
            return None
        return self._draw(nbytes, source.axis, target.axis, 1), self._draw(nbytes, source.axis, target.axis, 2)


@st.composite
def programs(draw):
    """Instructions that read values made before, under some signatures; at most a few values live at once."""
    instructions, last, born = [], [], []
    count = draw(st.integers(2, 16))
    for here in range(count):
        reach = range(max(0, len(born) - 4), len(born))
        inputs = tuple(sorted(draw(st.sets(st.sampled_from(reach), max_size=3)))) if reach else ()
        outputs = tuple(range(len(born), len(born) + draw(st.integers(1, 2))))
        made = (*FORMS, PENDING_GRADIENT) if not inputs else FORMS
        rules = draw(
            st.lists(
                st.builds(
                    Signature,
                    st.tuples(*[st.sampled_from(FORMS) for _ in inputs]),
                    st.tuples(*[st.sampled_from(made) for _ in outputs]),
                ),
                min_size=1,
                max_size=4,
                unique=True,
            )
        )
        if inputs:
            rules.append(Signature((REPLICATED,) * len(inputs), (REPLICATED,) * len(outputs)))
        for value in inputs:
            last[value] = here
        born += [here] * len(outputs)
        last += [-1] * len(outputs)
        instructions.append(Instruction(Verb.RUN, f"i{here}", inputs, outputs, tuple(rules)))
    values = tuple(Value(f"v{k}", (), k % 3, b, e) for k, (b, e) in enumerate(zip(born, last, strict=True)))
    return Program(tuple(instructions), values)


def replay(program, prices, planned):
    """Carry a plan out, check every step of it, and return its objective."""
    time = debt = 0.0
    previous, here, forms = 0, 0, {}
    for stage in planned.stages:
        length = len(stage.computations)
        assert 1 <= length <= LONGEST
        assert stage.conversions or previous in (0, LONGEST)
        forward = backward = compute = 0.0
        for value, given_form, target in stage.conversions:
            assert forms[value] == {given_form}, "a value is converted at most once, from the form it was made in"
            ahead, back = prices.conversion(program.values[value].nbytes, given_form, target)
            forms[value] = {given_form, target}
            forward, backward = forward + ahead, backward + back
        for number, signature in stage.computations:
            assert number == here
            instruction = program.instructions[number]
            assert signature in instruction.signatures
            for value, form in zip(instruction.inputs, signature.inputs, strict=True):
                assert form in forms[value]
            forms |= {v: {form} for v, form in zip(instruction.outputs, signature.outputs, strict=True)}
            compute += prices.compute(instruction, signature)
            here += 1
        time += max(debt, forward) + max(compute, forward) + 2 * debt + 2 * backward + 2 * compute
        debt, previous = compute, length
    assert here == len(program.instructions)
    return time + debt


def test_only_slices_need_an_even_axis():
    assert fits(shard(1), (3, 8), 4)
    assert not fits(shard(0), (3, 8), 4)
    assert not fits(shard(2), (3, 8), 1)
    assert all(fits(form, (3,), 4) for form in (REPLICATED, PARTIAL, PENDING_GRADIENT))


@given(program=programs(), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_kernel_finds_what_the_reference_finds(program, seed):
    prices = Prize(seed)
    try:
        expected = search(program, prices)
    except (KeyError, ValueError):
        with pytest.raises(TopoplanError, match="no plan"):
            plan(program, prices, max_states=10**6, model="m")
        return
    planned = plan(program, prices, max_states=10**6, model="m")
    assert planned.outcome == expected
    assert replay(program, prices, planned) == pytest.approx(expected.objective, rel=1e-12)


@given(program=programs(), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_tables_that_grow_change_nothing(program, seed):
    prices = Prize(seed)
    try:
        expected = plan(program, prices, max_states=10**6, model="m")
    except TopoplanError:
        assume(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_ROOM", 1)
        assert plan(program, prices, max_states=10**6, model="m") == expected
        patch.setattr(planning, "_MANY", 2)
        patch.setattr(repeats, "_ROOM", 2)
        assert plan(program, prices, max_states=10**6, model="m") == expected


def repeated(program, count):
    """Return a program of several equal parts."""
    n, v = len(program.instructions), len(program.values)
    instructions = [
        attrs.evolve(i, inputs=tuple(k + part * v for k in i.inputs), outputs=tuple(k + part * v for k in i.outputs))
        for part in range(count)
        for i in program.instructions
    ]
    values = [
        attrs.evolve(value, producer=value.producer + part * n, last=value.last + part * n if value.last >= 0 else -1)
        for part in range(count)
        for value in program.values
    ]
    return Program(tuple(instructions), tuple(values))


@pytest.mark.slow
@given(program=programs(), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_stages_of_equal_parts_are_read_and_change_nothing(program, seed):
    """Beside a search that knows of no equal cuts; and the recorded stages are read."""
    program, prices = repeated(program, 4), Prize(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "equal_cuts", lambda columns: np.full(len(columns.signature_at), -1, np.int32))
        try:
            expected = plan(program, prices, max_states=10**6, model="m")
        except TopoplanError:
            assume(False)
    assert plan(program, prices, max_states=10**6, model="m") == expected


def test_cuts_are_equal_where_prices_and_ages_are():
    """Equal layers: cuts of the later ones are equal, unless each operator has a price of its own."""
    problem = program_problem(layers=20)
    program = write_down(problem.graph, released)
    earlier = equal_cuts(columns_of(program, Prices(problem), "m"))
    assert np.count_nonzero(earlier >= 0) > len(program.instructions) // 3

    class Dearer(Prices):
        def compute(self, instruction, signature):
            return super().compute(instruction, signature) * (1 + instruction.op)

    dearer = equal_cuts(columns_of(program, Dearer(problem), "m"))
    assert (dearer < 0).all()


@given(program=programs(), seed=st.integers(0, 99), kept=st.sampled_from([2, 10**6]))
@settings(max_examples=60)
def test_states_are_counted_before_the_search(program, seed, kept):
    """The count is exact where no group of values is cut short, and never too high."""
    prices, largest = Prize(seed), 0

    def counted(columns, tables, *more):
        nonlocal largest
        ended = expand(columns, tables, *more)
        largest = max(largest, *np.bincount(tables.cut[: tables.counts[STATES]]).tolist())
        return ended

    columns = columns_of(program, prices, "m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "expand", counted)
        patch.setattr(counting, "_OF_A_GROUP", kept)
        states = counting.most_states(program, columns).states
        with contextlib.suppress(TopoplanError):
            planning.solve(program, columns, max_states=10**6, who="m")
    assert 1 <= states <= largest
    assert kept == 2 or states == largest


@pytest.mark.slow
@given(program=programs(), seed=st.integers(0, 99), states=st.integers(1, 4), entries=st.sampled_from([1, 5, 1 << 50]))
@settings(max_examples=40)
def test_thinning_keeps_the_fastest(program, seed, states, entries):
    """Beside a list that is sorted: which states and entries stay of the cut at which the kernel stops."""
    columns = columns_of(program, Prize(seed), "m")
    tables = empty_tables(columns, 1 << 14, 1 << 16)
    repeats = empty_repeats(columns, len(tables.cut))
    if expand(columns, tables, stack_for(columns), repeats, 1 << 14, 1, EACH) != OVER_BEAM:
        assume(False)

    def there():
        found = {}
        for state in np.flatnonzero(tables.cut[: tables.counts[0]] == tables.counts[3]).tolist():
            entry = tables.head[state]
            while entry >= 0:
                total = tables.time[entry] + tables.debt[entry] + tables.due[entry]
                found.setdefault(state, []).append((total, int(entry)))
                entry = tables.following[entry]
        return found

    before = there()
    thin(tables, states, entries)
    fastest = sorted(before, key=lambda state: (min(before[state])[0], state))[:states]
    each = max(1, min(EACH, entries // len(fastest)))
    assert there() == {state: sorted(before[state])[:each] for state in sorted(fastest)}


class TestProgram:
    def test_weights_are_read_before_their_operator(self):
        program = write_down(program_problem().graph, released)
        verbs = [instruction.verb for instruction in program.instructions]
        assert verbs == [Verb.TAKE, Verb.READ, Verb.RUN, Verb.READ, Verb.RUN, Verb.RUN, Verb.LOSS]
        assert program.values[0].last == 2
        assert [str(s) for s in program.instructions[1].signatures] == [
            "() -> (replicate)",
            "() -> (gather_0)",
            "() -> (gather_1)",
        ]
        assert [str(s) for s in program.instructions[-1].signatures] == ["(reduce) -> ()"]

    def test_slices_that_devices_cannot_share_evenly_are_left_out(self):
        program = write_down(program_problem(width=6).graph, released, n_devices=4)
        forms = {str(form) for i in program.instructions for s in i.signatures for form in (*s.inputs, *s.outputs)}
        assert forms == {"full", "gather_0", "reduce", "replicate"}
        read = program.instructions[1]
        assert [str(s) for s in read.signatures] == ["() -> (replicate)"]


class TestSearch:
    def test_too_many_states_are_refused(self):
        with pytest.raises(TopoplanError, match="more than 5 states"):
            plan_of(program_problem(), "released", 5)

    def test_a_model_with_too_many_states_is_refused_before_the_search(self, monkeypatch):
        monkeypatch.setattr(planning, "solve", None)  # would fail if it were called
        b = GraphBuilder("wide", 16)
        x = b.concat([b.relu(b.input((8,))) for _ in range(30)])
        b.append(losses.total(x), [x], "loss")
        problem = attrs.evolve(program_problem(), graph=b.build())
        with pytest.raises(TopoplanError) as refused:
            plan_of(problem, "released", 4_000_000)
        # Data is taken first, each tensor of it whole or sliced.
        counted = re.search(r"more than 4000000 states at '.*': at least ([\d.e+]+) \(.*max-states", str(refused.value))
        assert float(counted[1]) >= 2**30

    def test_a_model_that_ends_in_no_number_needs_no_sum(self):
        problem = program_problem()
        b = GraphBuilder("no loss", 16)
        b.linear(b.input((8,)), 8)
        graph = b.build()
        program = write_down(graph, released)
        assert Verb.LOSS not in [instruction.verb for instruction in program.instructions]
        without_loss = star_problem(graph, problem.cluster, problem.costs)
        assert plan(program, Prices(without_loss), max_states=100, model="m").stages
