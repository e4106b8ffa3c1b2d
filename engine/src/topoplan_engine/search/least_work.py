"""Seconds below which no plan of a problem gets: the work of all operators, uncut, over all devices.

A part of an operator takes no less than its share of the whole, with estimators whose kernels are the less efficient
the smaller they are, and what is computed several times only adds to it.  Waiting, messages and updates come on top.
`topoplan_studies.problems.bounds` has bounds that are greater, and take longer.
"""

from __future__ import annotations

import numpy as np

from topoplan.model.problem import Problem

__all__ = ["least_seconds"]


def least_seconds(problem: Problem) -> float | None:
    """Return the seconds; None where the estimator does not price an operator uncut.

    Args:
        problem: its model, prices and devices; a device that is twice as fast counts twice.
    """
    costs, device, total = problem.costs, np.zeros(1, dtype=np.int32), 0.0
    for number, operator in enumerate(problem.graph.operators):
        uncut = (1,) * len(operator.dims)
        if not costs.supports(number, uncut):
            return None
        price = costs.price(number, uncut, device)
        total += float(price.forward.sum() + price.backward.sum())
    speed = problem.cluster.device_speed
    return total * float(speed[0]) / float(speed.sum())
