"""How far a search is: no time left where nobody knows it, lines without a terminal, rates without compiling."""

from __future__ import annotations

import io
import math
import threading

import numba
import numpy as np
import pytest
from rich.console import Console

from topoplan.search.protocol import Progress
from topoplan_engine.kernels import clock as clocks
from topoplan_engine.reporting import progress as module
from topoplan_engine.reporting.progress import parts_shown, progress_shown


def far(evaluations, elapsed=1.0):
    return Progress(evaluations=evaluations, best=0.25, initial=0.5, acceptance=None, elapsed=elapsed)


def say(seconds):
    return f"{seconds:g} s"


@pytest.mark.parametrize(
    ("planning", "event", "before", "after"),
    [
        (False, "evaluated", "searching, 0 s", "searching: 5 of 100"),
        (False, "planning with spmd", "searching, 0 s", "planning with spmd: 5 of 100"),
        (True, "evaluated", "planning, 0 s", "planning: 5 plans simulated"),
    ],
)
def test_a_pipe_gets_a_line_now_and_then(monkeypatch, planning, event, before, after):
    lines, came = [], threading.Semaphore(0)

    def echo(text, err):
        assert err
        lines.append(text)
        came.release()

    monkeypatch.setattr(module.typer, "echo", echo)
    running = threading.active_count()
    with progress_shown(100, math.inf, planning=planning, quiet=False, say=say, every=1e-3) as report:
        assert came.acquire(timeout=60)
        report(event, far(6))
        while not lines[-1].startswith(f"{after}, best 0.25 s, "):  # others may have been on their way
            assert came.acquire(timeout=60)
    assert lines[0] == before
    assert threading.active_count() == running  # and none after the end


def test_long_work_in_parts_tells_a_pipe_of_them(capsys):
    with parts_shown("comparing", 3, every=0.0) as report:
        report(1, "one")
        report(2, "two")
    with parts_shown("comparing", 3) as report:
        report(1, "one")  # so soon after the start it says nothing
    with parts_shown("comparing", 3, quiet=True, every=0.0) as report:
        report(1, "one")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "comparing: 1 of 3, one, 0 s\ncomparing: 2 of 3, two, 0 s\n")


def test_quiet_is_quiet(capsys):
    with progress_shown(1, math.inf, planning=False, quiet=True, say=say) as report:
        report("evaluated", far(2))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("planning", [False, True])
def test_a_terminal_gets_a_bar_with_time_left_only_where_that_is_known(monkeypatch, planning):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(module, "Console", lambda **given: console)
    with progress_shown(1000, math.inf, planning=planning, quiet=False, say=say) as report:
        report("evaluated", far(14, elapsed=2.0))
    text = shown.getvalue()
    assert "best 0.25 s" in text
    assert "7/s" in text
    assert ("13 plans simulated" in text) is planning
    assert ("13 of 1000" in text) is not planning


def test_a_bar_names_the_planner_that_takes_its_turn(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(module, "Console", lambda **given: Console(file=shown, force_terminal=True, width=120))
    with progress_shown(1000, math.inf, planning=False, quiet=False, say=say) as report:
        report("planning with pipeline", far(14))
    assert "planning with pipeline" in shown.getvalue()


def test_a_time_limit_is_what_progress_is_measured_by(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(module, "Console", lambda **given: Console(file=shown, force_terminal=True, width=120))
    with progress_shown(1000, 8.0, planning=False, quiet=False, say=say) as report:
        report("evaluated", far(14, elapsed=2.0))
    assert "13 candidates, 2 of 8 s" in shown.getvalue()


def test_the_clock_stands_still_while_kernels_are_compiled(monkeypatch):
    @numba.njit
    def added(values):
        return values.sum()

    before = clocks.seconds_of_compilation()
    assert added(np.ones(3)) == 3
    spent = clocks.seconds_of_compilation()
    assert spent > before
    added(np.ones(5))  # it is compiled
    assert clocks.seconds_of_compilation() == spent
    now = [100.0]
    monkeypatch.setattr(clocks.time, "monotonic", lambda: now[0])
    began = clocks.clock()
    clocks._watch.on_start(None)
    clocks._watch.on_start(None)  # one kernel needs another one
    now[0] += 5.0
    clocks._watch.on_end(None)
    now[0] += 2.0
    clocks._watch.on_end(None)
    assert clocks.clock() == began
    now[0] += 1.0
    assert clocks.clock() == pytest.approx(began + 1.0)
