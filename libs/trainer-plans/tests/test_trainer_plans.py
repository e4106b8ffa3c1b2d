"""An exporter's own refusal is the reason why a strategy is not written; other errors are not hidden."""

from __future__ import annotations

import pytest

from topoplan import TopoplanError
from topoplan.testing import reference
from topoplan_trainer_plans import ProposedPlan, why_not_written

PLAN = reference.plan()
PARTS = (PLAN.graph, PLAN.cluster, PLAN.strategy)


def test_a_proposal_has_what_an_exporter_reads_of_a_plan():
    proposals = []
    assert why_not_written(lambda plan: proposals.append(plan) or b"", *PARTS) == ""
    (proposal,) = proposals
    assert isinstance(proposal, ProposedPlan)
    assert all(getattr(proposal, name) is getattr(PLAN, name) for name in ("graph", "cluster", "strategy"))


def test_a_refusal_is_the_reason():
    def write(plan):
        raise TopoplanError(f"trainer: {plan.graph.name} has no layers")

    assert why_not_written(write, *PARTS) == "trainer: reference has no layers"


def test_a_fault_of_an_exporter_is_no_reason():
    with pytest.raises(ZeroDivisionError):
        why_not_written(lambda plan: 1 // 0, *PARTS)
