"""Profiles that come with the library."""

from __future__ import annotations

import re

import pytest

from topoplan import TopoplanError
from topoplan_layer_profiles.graphs import graph_of_profile
from topoplan_layer_profiles.profiles import names, profile


def test_a_profile_has_the_figures_that_were_published():
    graph = graph_of_profile("bert-48", None, 64)
    assert (graph.name, graph.batch_size, len(graph.operators)) == ("bert-48", 64, 53)
    layer = next(op for op in graph.operators if op.name.endswith(".layer_7"))
    assert layer.profile.forward == pytest.approx(2.69e-3 * 32)  # 2 samples were profiled
    assert layer.weights[0].nbytes == 50384896
    assert graph_of_profile("bert-48", None, None).batch_size == 2
    assert graph_of_profile("bert-48", 4, None).batch_size == 4


@pytest.mark.parametrize("name", names())
def test_every_profile_makes_a_graph(name):
    graph = graph_of_profile(name, None, None)
    assert 0 < len(graph.operators) <= len(profile(name).nodes)


def test_a_profile_that_is_not_there_is_said():
    with pytest.raises(TopoplanError, match=re.escape("profile: no 'bert48'; did you mean 'bert-48'?")):
        graph_of_profile("bert48", None, 64)
