"""The conformance kit: honest components pass every check, and each kind of cheat is caught by name."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import (
    Cluster,
    Exporter,
    Placement,
    Simulate,
    Topology,
    TopoplanError,
    option,
)
from topoplan.search.protocol import Candidate
from topoplan.testing import check_component, checks_for, parametrize_with_checks, reference
from topoplan_samples.cheats import (
    BY_NAME,
    CHEATS,
    HONEST,
    PLACED,
    Assuming,
    Following,
    Misspelt,
    Walk,
    broken_ring,
    build_ring,
    changed,
    made,
    torus,
    write_names,
)


@pytest.mark.parametrize("kind", HONEST)
def test_honest_component_keeps_every_promise(kind):
    for name, check in checks_for(HONEST[kind]).items():
        if name not in BY_NAME:
            check()


@pytest.mark.parametrize(("kind", "change", "check"), CHEATS, ids=[f"{kind}-{check}" for kind, _, check in CHEATS])
@pytest.mark.by_day(25)
def test_cheat_is_caught(kind, change, check):
    with pytest.raises((AssertionError, TopoplanError, UnicodeError)):
        checks_for(changed(HONEST[kind], **change))[check]()


def test_every_check_can_fail():
    """Each check of a kind has a cheat of that kind; each one of all kinds has one somewhere."""
    caught = {(kind, check) for kind, _, check in CHEATS}
    caught_somewhere = {check for _, check in caught} | BY_NAME | {"check_no_optional_name_is_misspelt"}
    checks = {kind: set(checks_for(component)) for kind, component in HONEST.items()}
    of_all_kinds = set.intersection(*checks.values())
    assert of_all_kinds <= caught_somewhere
    assert {(kind, check) for kind in checks for check in checks[kind] - of_all_kinds} <= caught


def test_a_simulator_that_knows_one_network_alone_is_told_what_to_do():
    class Narrow(Simulate):
        def __call__(self, taskgraph, fabric, cluster):
            return reference.timeline(taskgraph, fabric.n_links)

    cheat = changed(HONEST["simulator"], build=lambda self: Narrow())
    with pytest.raises(AssertionError, match="simulate its phases, or refuse what is no Fabric"):
        checks_for(cheat)["check_a_rebuilt_fabric_takes_its_time"]()


@pytest.mark.parametrize(
    ("kind", "build", "message"),
    [
        ("simulator", lambda self: Misspelt(), "Misspelt.link_second is none .*Simulate.*link_seconds"),
        ("searcher", lambda o, p, r: Following(p, r), "Following.follow is none .*Search.*follows"),
        ("estimator", lambda *_: Assuming(), "Assuming.assumption is none .*CostFunction.*assumptions"),
    ],
)
def test_a_misspelt_method_is_named_with_the_right_one(kind, build, message):
    with pytest.raises(AssertionError, match=message):
        checks_for(changed(HONEST[kind], build=build))["check_no_optional_name_is_misspelt"]()


@pytest.mark.parametrize(
    ("kind", "name", "right"),
    [
        ("exporter", "raed", "read"),
        ("exporter", "reads", "read"),
        ("exporter", "read_strategie", "read_strategy"),
        ("topology", "follow_demand", "follows_demand"),
        ("topology", "exemple_cluster", "example_cluster"),
        ("searcher", "whole_batches", "whole_batch"),
    ],
)
def test_a_misspelt_name_of_the_class_is_told_with_the_right_one(kind, name, right):
    check = checks_for(changed(HONEST[kind], **{name: True}))["check_no_optional_name_is_misspelt"]
    with pytest.raises(AssertionError, match=rf"Changed\.{name} is none of .* \(did you mean '{right}'\?\)"):
        check()


def test_an_option_may_resemble_an_attribute_of_the_class():
    members = {"__annotations__": {"switches": int}, "switches": option(2, help="how many")}
    wired = changed(HONEST["topology"], decorated=attrs.frozen(kw_only=True), **members)
    checks_for(wired)["check_no_optional_name_is_misspelt"]()


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ({1: 17}, r"placements \{1: 17\} \(must map indices from 0 to 1 to Placement\)"),
        ({0: None}, r"placements \{0: None\}"),
        ({1000: PLACED}, r"placements \{1000: Placement\("),
        ({-1: PLACED}, r"placements \{-1: Placement\("),
        ({0: Placement((1,), [0])}, "for operator 0: 1 degrees for 3 dimensions"),
    ],
)
def test_one_check_tells_that_a_candidate_is_none(placements, message):
    class Astray(Walk):
        def ask(self):
            return [Candidate(base=self.state, placements=placements)]

    reasons = []
    for name, check in checks_for(changed(HONEST["searcher"], build=lambda o, p, r: Astray(p, r))).items():
        if name not in BY_NAME:
            try:
                check()
            except Exception as error:
                reasons.append((name, error))
    ((name, error),) = reasons
    assert name == "check_candidates_can_be_built"
    with pytest.raises(AssertionError, match=message):
        raise error


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (changed(Topology, build=build_ring), r'topology Changed: None is no name of a component \(write name = "'),
        (made(Exporter, "names", write=write_names), "exporter 'names': suffix is missing"),
        (changed(HONEST["searcher"], axis="strat"), "searcher 'walk': axis is 'strat' .must be one of strategy, net"),
    ],
)
def test_a_class_that_cannot_be_registered_has_one_check_that_says_so(cls, message):
    (case,) = parametrize_with_checks(cls).mark.args[1]
    with pytest.raises(TopoplanError, match=message):
        case.values[0]()


@pytest.mark.parametrize("bandwidth", [-1e6, float("nan"), 0.0, float("inf")])
def test_why_there_is_no_fabric_is_told(bandwidth):
    cheat = changed(HONEST["topology"], build=broken_ring(bandwidth))
    with pytest.raises(AssertionError) as told:
        checks_for(cheat)["check_fabric_has_the_hosts_of_the_cluster"]()
    for text in ("example_cluster", "2 hosts: fabric 'ring': link 0 -> 1 has bandwidth", "16 hosts: "):
        assert text in str(told.value)
    assert f"has bandwidth {bandwidth} bytes/s" in str(told.value)


def test_the_author_names_the_cluster_of_the_example():
    cluster = Cluster.uniform(n_hosts=27, interfaces=6, interface_bandwidth=1e9)
    honest = changed(HONEST["topology"], build=torus, example_cluster=lambda: cluster)
    for name, check in checks_for(honest).items():
        if name not in BY_NAME:
            check()
    few = changed(honest, example_cluster=lambda: attrs.evolve(cluster, interfaces=np.full(27, 5)))
    message = "of 27 hosts: fabric 'torus': 6 links of 48 Gbps together lead from host 0, which has 5 interfaces of 8"
    with pytest.raises(AssertionError, match=message):
        checks_for(few)["check_links_stay_within_interfaces"]()


def test_function_inside_a_function_does_not_pickle():
    component = changed(HONEST["topology"], build=lambda self, context: None)
    with pytest.raises(Exception, match="pickle"):
        checks_for(component)["check_component_pickles"]()


@pytest.mark.slow
def test_heavy_import_is_found(tmp_path, monkeypatch):
    (tmp_path / "acme_heavy.py").write_text("import networkx\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    component = changed(HONEST["topology"], __module__="acme_heavy")
    with pytest.raises(AssertionError, match="networkx"):
        checks_for(component)["check_import_is_light"]()


def test_check_component_names_component_and_promise():
    cheat = changed(HONEST["topology"], __doc__="")
    with pytest.raises(AssertionError, match="topology 'ring': check_summary_is_one_line: no summary"):
        check_component(cheat)


def test_every_check_says_its_promise():
    for component in HONEST.values():
        for name, check in checks_for(component).items():
            assert check.func.__doc__, name


def test_expected_failure_is_strict_and_needs_a_known_name():
    excuse = {"check_options_are_frozen": "the test says so"}
    mark = parametrize_with_checks(HONEST["topology"], expected_failures=excuse).mark
    (case,) = [case for case in mark.args[1] if case.id.endswith("check_options_are_frozen")]
    assert case.marks[0].kwargs == {"strict": True, "reason": "the test says so"}
    with pytest.raises(ValueError, match="no such check: check_nothing"):
        parametrize_with_checks(HONEST["topology"], expected_failures={"check_nothing": "?"})
