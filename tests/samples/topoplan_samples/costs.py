"""Prices of operators that tests of several packages use."""

from __future__ import annotations

import math

import numpy as np

from topoplan import CostFunction, PartCosts, TopoplanError

__all__ = ["FlatCosts", "SharedSecond"]


class FlatCosts(CostFunction):
    """Every part costs the same; only what ``allowed`` accepts can be priced."""

    def __init__(self, allowed=lambda op, degrees: True, memory=1.0):
        self.allowed, self.memory = allowed, memory

    def supports(self, op, degrees):
        return self.allowed(op, degrees)

    def price(self, op, degrees, devices):
        if not self.allowed(op, degrees):
            raise TopoplanError(f"operator {op}: {degrees} is not measured")
        ones = np.ones(len(devices))
        return PartCosts(forward=ones, backward=ones, memory=self.memory * ones)


class SharedSecond(CostFunction):
    """A second for every operator, shared by its parts, as planners of programs for all devices ask: of one device."""

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        return PartCosts(forward=[1.0 / math.prod(degrees)], backward=[2.0], memory=[1.0])
