"""Classes where those of the devices are known: the ones of the partition that refines all parts, in its order."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Host
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.symmetry.class_key import ClassKeys
from topoplan_engine.lowering.symmetry.classes import equitable_partition
from topoplan_engine.lowering.symmetry.known_devices import partition_of_devices
from topoplan_engine.lowering.symmetry.quotient import Symmetry, quotient
from topoplan_samples.models import model_problem

#: What stands for a class may be another one of it, and classes of pairs are of those that stand for theirs.
OTHER_MEMBERS = {"pair", "first_part", "first_group", "first_pair"}


def strategies(problem, rng, steps):
    """Strategies that have gone some random moves from the initial one."""
    strategy = problem.space.initial()
    for _ in range(steps):
        op = int(rng.integers(len(strategy.placements)))
        changed = strategy.with_changes({op: problem.space.random_placement(op, rng)})
        yield changed
        strategy = changed if rng.random() < 0.4 else strategy


def partitions(lowering, strategy):
    """The table of a strategy, and its classes by both ways."""
    fragments, numbers = lowering._fragments, lowering.pieces.numbers(strategy)
    table = lowering.pieces.table_of_numbers(numbers)
    colors = ClassKeys(fragments, lowering.pieces).device_colors(numbers, 0)
    what = (table, fragments.op_class, fragments.edge_class, colors)
    return table, equitable_partition(*what), partition_of_devices(*what)


@pytest.mark.parametrize(("model", "servers"), [("dlrm", 4), ("dlrm", 16), ("alexnet", 16), ("candle-uno", 8)])
def test_the_quotient_is_that_of_the_whole_partition_to_the_last_bit(model, servers):
    problem = model_problem(Host.discover(), model, servers=servers)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fragments = lowering._fragments
    for strategy in strategies(problem, np.random.default_rng(4), 30):
        table, whole, known = partitions(lowering, strategy)
        assert known is not None
        assert known._replace(**{name: getattr(whole, name) for name in OTHER_MEMBERS}).key == whole.key
        for name, one, other in zip(whole._fields, whole, known, strict=True):
            if name not in OTHER_MEMBERS:
                np.testing.assert_array_equal(one, other, err_msg=name)
        assert [len(one) for one in whole[3:6]] == [len(one) for one in known[3:6]]
        made = [
            quotient(Symmetry(table, classes, fragments.op_class), fragments.op_names, servers)
            for classes in (whole, known)
        ]
        for one, other in zip(made[0][1:5], made[1][1:5], strict=True):
            np.testing.assert_array_equal(one, other)
        for column in attrs.fields(type(made[0].taskgraph)):
            one, other = (getattr(each.taskgraph, column.name) for each in made)
            np.testing.assert_array_equal(one, other, err_msg=column.name)


def test_refused_where_the_order_or_the_classes_are_not_certain():
    """Messages in turn; a device with two equal parts of an operator; a consumer that has an automorphic one."""
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fragments, strategy = lowering._fragments, problem.space.initial()
    table, _, known = partitions(lowering, strategy)
    colors = np.zeros(4, np.uint64)
    assert known is not None
    assert partition_of_devices(table, fragments.op_class, fragments.edge_class, colors, 1) is None
    twice = table._replace(device=np.where(table.device == 1, 0, table.device).astype(np.int32))
    other_colors = np.array([1, 2, 3, 4], np.uint64)
    assert partition_of_devices(twice, fragments.op_class, fragments.edge_class, other_colors) is None
    consumer = int(table.edge_dst_op[0])
    same_class = fragments.op_class.copy()
    same_class[consumer - 1] = same_class[consumer]
    assert partition_of_devices(table, same_class, fragments.edge_class, other_colors) is None
