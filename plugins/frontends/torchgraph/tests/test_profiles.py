"""Profiles that come with the frontend."""

from __future__ import annotations

import re

import pytest

from topoplan import TopoplanError
from topoplan_frontend_torchgraph import Torchgraph
from topoplan_frontend_torchgraph.profiles import names, profile


def test_a_profile_has_the_figures_that_were_published():
    graph = Torchgraph(profile="bert-48").build(64)
    assert (graph.name, graph.batch_size, len(graph.operators)) == ("bert-48", 64, 53)
    layer = next(op for op in graph.operators if op.name.endswith(".layer_7"))
    assert layer.profile.forward == pytest.approx(2.69e-3 * 32)  # 2 samples were profiled
    assert layer.weights[0].nbytes == 50384896
    assert Torchgraph(profile="bert-48").build(None).batch_size == 2
    assert Torchgraph(profile="bert-48", profile_batch=4).build(None).batch_size == 4


@pytest.mark.parametrize("name", names())
def test_every_profile_makes_a_graph(name):
    graph = Torchgraph(profile=name).build(None)
    assert 0 < len(graph.operators) <= len(profile(name).nodes)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            Torchgraph(),
            "profile or file is missing (-o profile=NAME names a profile that comes with it: amoeba-6",
        ),
        (Torchgraph(profile="bert48"), "profile: no 'bert48'; did you mean 'bert-48'?"),
        (Torchgraph(profile="bert-48", file="a.txt"), "profile=bert-48 and file=a.txt are both given"),
    ],
)
def test_what_cannot_be_read_is_said(options, told):
    with pytest.raises(TopoplanError, match=re.escape(told)):
        Torchgraph.build(options, 64)
