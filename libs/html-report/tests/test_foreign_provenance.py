"""Provenance of a file is whatever somebody wrote: a page shows it, or a line says what is wrong; nothing else."""

from __future__ import annotations

import contextlib

import attrs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan.testing import reference
from topoplan_engine.reporting.throughput import plan_throughput_rows
from topoplan_html_report import NamedPlan, report

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
COMPONENT = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["topology", "simulator", "estimator"]) | VALUES,
        "name": st.sampled_from(["fluid", "bigswitch"]) | VALUES,
        "options": VALUES,
    },
)
PROVENANCE = st.fixed_dictionaries(
    {},
    optional={
        "seed": VALUES,
        "assumptions": VALUES | st.dictionaries(st.sampled_from(["precision", "compute_efficiency", "notes"]), VALUES),
        "iteration_time": VALUES | st.dictionaries(st.sampled_from(["mean_s", "timeline_seed"]), VALUES),
        "reports": VALUES,
        "components": VALUES | st.lists(COMPONENT, max_size=3),
    },
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(provenance={"assumptions": {"compute_efficiency": 3, "notes": "x"}}, is_pipeline=False)
@example(provenance={"assumptions": {"compute_efficiency": 3, "notes": "x"}}, is_pipeline=True)
@example(
    provenance={"components": [{"kind": "topology", "name": "bigswitch", "options": [1]}], "seed": True},
    is_pipeline=False,
)
@given(provenance=PROVENANCE, is_pipeline=st.booleans())
def test_any_provenance_is_shown_or_refused(host, alexnet, provenance, is_pipeline):
    foreign = attrs.evolve(reference.pipelined() if is_pipeline else alexnet, provenance=provenance)
    with contextlib.suppress(TopoplanError):
        assert report([NamedPlan("foreign", foreign)], host)
    plan_throughput_rows(foreign)
