"""What tables say of the busiest link, of bounds that are equal, and of files that another program runs."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan.model.timeline import Bounds
from topoplan.testing import reference
from topoplan_engine.reporting.report import _time_as_run
from topoplan_engine.reporting.timeline import simulation_rows


def rows(busy, **bounds):
    plan = reference.plan()
    assert plan.timeline is not None
    links = np.zeros(plan.fabric.links.n_links)
    links[0] = busy
    lower = Bounds(**{"device": 0.0, "link": busy, "chain": 0.0, **bounds})
    return dict(
        simulation_rows(attrs.evolve(plan, timeline=attrs.evolve(plan.timeline, link_busy=links, bounds=lower)))
    )


def test_a_link_inside_a_host_is_the_busiest_where_it_needs_longest():
    """The chart of the report shows the same number."""
    assert rows(0.0)["busiest link"] == "none"
    assert rows(0.0, link=0.05886)["busiest link"] == "inside a host, 58.8600 ms"
    network = rows(0.01)["busiest link"]
    assert network.endswith(", 10.0000 ms")
    assert rows(0.01, link=0.05886)["busiest link"] == f"inside a host, 58.8600 ms; of the network {network}"


def test_of_equal_bounds_one_is_named():
    assert rows(0.01, device=0.01, chain=0.01)["lower bound"] == "10.0000 ms (busiest device)"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.922, "922.0000 ms (fluid:transport=flexnetpacket)"),
        (0.596, "922.0000 ms, 54.7% longer than the plan (fluid:transport=flexnetpacket)"),
        (1.3, "922.0000 ms, 29.1% shorter than the plan (fluid:transport=flexnetpacket)"),
    ],
)
def test_a_file_that_takes_another_time_says_by_how_much(seconds, said):
    of = {"iteration_time_s": 0.922, "standard_deviation_s": 0.0, "simulator": "fluid:transport=flexnetpacket"}
    assert _time_as_run(of, seconds) == said
