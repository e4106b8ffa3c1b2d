"""Layouts are those that the searcher `stated` makes of the same words; shapes of groups by hand."""

from __future__ import annotations

import pytest

from topoplan import Cluster, PlacedStrategy
from topoplan_engine.precision import in_precision
from topoplan_frontend_huggingface import HuggingFace
from topoplan_joint_moves import KINDS, communicators, kinds_of, relayouts
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

GRAPH = in_precision(HuggingFace(preset="llama3-8b", layers=4, sequence_length=64).build(32), "bf16")


def strategy(**settings):
    return strategy_of(Settings(**settings), GRAPH, 16)[0]


@pytest.mark.parametrize(
    ("settings", "layouts"),
    [
        ({"tp": 2, "pp": 2}, {"tp-cp-ep-pp-dp"}),
        ({"pp": 2}, {"tp-cp-ep-pp-dp"}),
        (
            {"tp": 2, "cp": 2, "pp": 2},  # the three that are not tensor parallelism in 3! - 1 other orders
            {"tp-cp-ep-pp-dp", "tp-dp-cp-ep-pp", "tp-dp-pp-cp-ep", "tp-pp-cp-ep-dp", "tp-pp-dp-cp-ep"},
        ),
        ({"tp": 2, "zero": 3, "shard": 2}, set()),  # two axes, of which tensor parallel devices stay neighbours
    ],
)
def test_layouts_are_those_of_the_same_words(settings, layouts):
    moved = relayouts(strategy(**settings), GRAPH, 16)
    assert {layout for layout, _ in moved} == layouts
    for layout, each in moved:
        assert each.key == strategy(**settings, layout=layout).key


def test_a_layout_moved_back_is_the_first_one():
    first = strategy(tp=2, pp=2)
    (moved,) = relayouts(first, GRAPH, 16)
    (back,) = relayouts(moved.strategy, GRAPH, 16)
    assert (back.layout, back.strategy.key) == ("tp-cp-ep-dp-pp", first.key)


def test_shapes_of_groups_are_hosts_and_members_in_each():
    """Hosts of four: pairs of tensor parallel devices, four replicas of each, two of which are in a host."""
    cluster = Cluster.uniform(n_hosts=4, devices_per_host=4)
    assert communicators(strategy(tp=2, pp=2), cluster) == {"2x2": ("dp",), "1x2": ("tp",)}
    assert communicators(PlacedStrategy(()), cluster) == {}
    assert kinds_of(strategy(tp=2, pp=2)) == KINDS[:-1]
