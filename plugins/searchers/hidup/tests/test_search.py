"""The searcher: what it reports of its plan."""

from __future__ import annotations

import pytest

from topoplan_reference.hidup import search
from topoplan_samples.problems import program_problem
from topoplan_searcher_hidup import Hidup
from topoplan_searcher_hidup.search import HidupSearch
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import write_down
from topoplan_spmd_planning.released import released


def test_work_is_shared_and_the_loss_is_in_partial_sums():
    problem = program_problem()
    report = HidupSearch(Hidup(), problem).report(None)
    program = write_down(problem.graph, released)
    assert report["objective"] == search(program, Prices(problem)).objective
    operators = {c["operator"]: c for stage in report["program"] for c in stage["computations"]}
    assert all("gather" in form for name in ("linear1", "linear2") for form in operators[name]["outputs"])
    assert operators["loss"]["outputs"] == ["reduce"]
    # three operators of a second each, shared by four devices
    assert report["forward_compute_s"] == pytest.approx(3 / 4)
