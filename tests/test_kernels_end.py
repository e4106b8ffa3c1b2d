"""A simulation that takes long ends in the middle, when the search that it runs in must end."""

from __future__ import annotations

import attrs
import pytest
from kept_searches import WIRED, with_run

from topoplan import Host
from topoplan.search.stopping import Stopped
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import Choice
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_engine.kernels.jit import interrupted, njit, raise_interrupt
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state


@njit()
def _loop(rounds):
    for number in range(rounds):
        if number & 1023 == 0 and interrupted():
            return number
    return -1


def test_a_kernel_asks_whether_the_search_must_end():
    assert _loop(10_000) == -1
    asked = []

    def remaining():
        asked.append(1)
        return 3.0 - len(asked)

    with obeyed(Stop(), remaining):
        assert _loop(1 << 40) == 2 * 1024
        with pytest.raises(Stopped):
            raise_interrupt()
    with pytest.raises(KeyboardInterrupt):
        raise_interrupt()


def test_an_iteration_is_left_in_the_middle_of_its_simulation():
    experiment = attrs.evolve(
        with_run(WIRED, batch_size=8192),
        model=Choice("dlrm", {"preset": "dlrm16"}),
        cluster=ClusterOptions(servers=128),
    )
    setup = set_up_search(Host.discover(), experiment)
    state = first_state(setup.evaluator, setup.strategy, setup.rng())
    taskgraph, asked = setup.evaluator.plan(state, {}).taskgraph, []

    def remaining():
        asked.append(1)
        return 2.5 - len(asked)

    with obeyed(Stop(), remaining), pytest.raises(Stopped):
        setup.simulate.makespan(taskgraph, state.fabric, setup.problem.cluster)
    assert len(asked) > 1  # it was asked before the kernel, once more in there, and then by who raised
