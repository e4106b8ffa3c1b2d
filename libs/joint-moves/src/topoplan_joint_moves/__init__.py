"""Moves that leave what devices compute as it is: layouts of staged strategies, and algorithms of their collectives.

    StagedStrategy ─► relayouts: the same stages, whose ranks lie on devices in another order
                   └► communicators: shapes of its groups ─► rules: texts for `Candidate.collectives`

Any searcher can propose what these return: a layout as a new state, rules as a candidate's ``collectives``.
"""

from __future__ import annotations

from topoplan_joint_moves.algorithms import KINDS, algorithm_names, communicators, kinds_of, text_of_rules
from topoplan_joint_moves.layouts import Relayout, relayouts

__all__ = ["KINDS", "Relayout", "algorithm_names", "communicators", "kinds_of", "relayouts", "text_of_rules"]
