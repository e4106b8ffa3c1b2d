"""What leaves planning and pricing: the user, a clock, and an iteration that is too large."""

from __future__ import annotations

import math

import pytest

from topoplan.search.stopping import Stopped, stop_if_wanted
from topoplan_engine.interrupt import Stop, TooLargeError, check_size, obeyed


def test_nothing_is_left_outside_of_a_search():
    stop_if_wanted()
    check_size(10**15)


def test_a_wish_and_a_clock_leave_what_runs():
    stop, seconds = Stop(), [1.0]
    with obeyed(stop, lambda: seconds[0]):
        stop_if_wanted()
        stop.wanted = True
        with pytest.raises(Stopped):
            stop_if_wanted()
        stop.wanted, seconds[0] = False, 0.0
        with pytest.raises(Stopped):
            check_size(1)
    stop_if_wanted()


def test_who_handles_errors_lets_it_pass():
    assert not issubclass(Stopped, Exception)
    assert issubclass(TooLargeError, Exception)


def test_an_iteration_is_too_large_for_the_time_that_there_is():
    with obeyed(Stop(), lambda: math.inf, lambda: 100.0):
        check_size(100)
        with pytest.raises(TooLargeError):
            check_size(101)
