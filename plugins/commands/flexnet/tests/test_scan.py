"""Every flag of FlexNet is found, however it is dashed and wherever it stands, and no word is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topoplan import TopoplanError
from topoplan_command_flexnet.flags import FLAGS
from topoplan_command_flexnet.programs import PROGRAMS, program_of
from topoplan_command_flexnet.scan import Found, Skipped, scan

#: FlexNet's flags with a value, and a value; then its switches (FFConfig::parse_args and DLRMsim's own).
VALUES = {
    "--nsimnode": "16",
    "--nsimgpu": "4",
    "--nodes": "2",
    "-ll:gpu": "1",
    "-ll:cpu": "1",
    "-ll:fsize": "39000",
    "-ll:zsize": "20000",
    "-ll:util": "4",
    "--big-gpu": "4",
    "-b": "64",
    "--batch-size": "64",
    "--interface-bandwidth": "100",
    "--inter-gpu-bandwidth": "256",
    "--gpu-dram-bandwidth": "200",
    "--network-latency": "1",
    "--node-degree": "4",
    "--net-opt": "1",
    "--topology": "topoopt",
    "--topo-file": "t",
    "--mfile": "m.json",
    "--taskgraph": "t.fbuf",
    "--budget": "5",
    "--search-budget": "5",
    "--alpha": "0.05",
    "--search-alpha": "0.05",
    "--max-localsz": "128",
    "--simulator-workspace-size": "65536",
    "--simulator-segment-size": "16777216",
    "--simulator-max-num-segments": "1",
    "--machine-model-version": "0",
    "--machine-model-file": "f",
    "--import": "s",
    "--import-strategy": "s",
    "--export": "s",
    "--export-strategy": "s",
    "-e": "1",
    "--epochs": "1",
    "--lr": "0.01",
    "--learning-rate": "0.01",
    "--wd": "1e-4",
    "--weight-decay": "1e-4",
    "-p": "10",
    "--print-freq": "10",
    "-d": "data",
    "-s": "s.txt",
    "--strategy": "s.txt",
    "--dataset": "data",
    "--python-data-loader-type": "2",
    "--arch-sparse-feature-size": "64",
    "--arch-embedding-size": "10-20",
    "--embedding-bag-size": "100",
    "--arch-mlp-bot": "4-2",
    "--arch-mlp-top": "8-2",
    "--sigmoid-bot": "-1",
    "--sigmoid-top": "-1",
    "--arch-interaction-op": "cat",
    "--loss-threshold": "0",
    "--data-size": "-1",
}
SWITCHES = (
    "--measure",
    "--enable-propagation",
    "--overlap",
    "--enable-parameter-parallel",
    "--enable-attribute-parallel",
    "--no-gpu",
    "--profiling",
    "--allow-tensor-op-math-conversion",
    "--fusion",
    "--control-replication",
    "-dm:memoize",
)
KNOWN = (*FLAGS, *program_of("dlrmsim").flags)
DASHES = ("-", "--", "---", "\u2013", "\u2014", "\u2013\u2013", "\u2212")

flags = st.one_of(
    st.sampled_from(sorted(VALUES)).map(lambda name: (name, VALUES[name])),
    st.sampled_from(SWITCHES).map(lambda n: (n,)),
)
unknown = st.sampled_from([("word",), ("--no-such-flag",), ("--no-such-flag", "3"), ("7",), ("",)])


def words_of(one):
    return one.words if isinstance(one, Skipped) else (one.typed, one.word) if one.word else (one.typed,)


@pytest.mark.parametrize("name", [*VALUES, *SWITCHES])
def test_every_flag_is_known(name):
    (found,) = scan([name, VALUES[name]] if name in VALUES else [name], KNOWN)
    assert isinstance(found, Found)
    assert (found.typed, found.name, found.word) == (name, name, VALUES.get(name, ""))
    assert bool(found.flag.key) != bool(found.flag.why)


def test_every_flag_that_is_known_is_tried_here():
    listed = {name for flag in KNOWN for name in flag.names}
    assert listed <= {*VALUES, *SWITCHES}


@given(st.lists(st.one_of(flags, unknown), max_size=12))
def test_flags_stand_in_any_order_and_no_word_is_lost(groups):
    found = scan([word for group in groups for word in group], KNOWN)
    assert [word for one in found for word in words_of(one)] == [word for group in groups for word in group]
    # A word behind a flag of the runtime system is its value; which of them have one, FlexNet does not know.
    assume(not any(a[0].startswith("-dm:") and not b[0].startswith("-") for a, b in pairwise(groups)))
    assert [words_of(one) for one in found if isinstance(one, Found)] == [
        group for group in groups if group[0] in VALUES or group[0] in SWITCHES
    ]


@given(flags, st.sampled_from(DASHES))
def test_dashes_may_be_any(group, dashes):
    name, *value = group
    typed = dashes + name.lstrip("-")
    (found,) = scan([typed, *value], KNOWN)
    assert isinstance(found, Found)
    assert (found.typed, found.name) == (typed, name)


def test_slips_of_flexnets_documentation_are_understood():
    words = ["--degree", "8", "---batch-size", "4096", "\u2013mfile", "m.json"]
    found = scan(words, KNOWN)
    assert [(one.name, one.value) for one in found] == [
        ("--node-degree", 8),
        ("--batch-size", 4096),
        ("--mfile", "m.json"),
    ]


def test_an_unknown_flag_takes_its_value_along_and_names_the_nearest():
    found = scan(["--bacth-size", "32", "--nsimnode", "4", "stray"], KNOWN)
    assert found[0] == Skipped(words=("--bacth-size", "32"), hint="--batch-size")
    assert found[2] == Skipped(words=("stray",))


def test_a_flag_of_another_program_is_unknown():
    (found,) = scan(["--ntables", "4"], KNOWN)
    assert isinstance(found, Skipped)
    (found,) = scan(["--ntables", "4"], (*FLAGS, *program_of("ncfsim").flags))
    assert found.value == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nsimnode"], "--nsimnode: needs a value"),
        (["--nsimnode", "--topology", "fc"], "--nsimnode: needs a value, but --topology follows"),
        (["--nsimnode", "0"], "--nsimnode: '0' must be a whole number of at least 1"),
        (["--batch-size", "4k"], "--batch-size: '4k' must be a whole number of at least 1"),
        (["---batch-size", "4.5"], "---batch-size: '4.5' must be"),
        (["--nsimnode", "9" * 5000], "must be a whole number"),
        (["--alpha", "0"], "--alpha: '0' must be a number above 0"),
        (["--alpha", "nan"], "--alpha: 'nan' must be a number above 0"),
        (["--budget", "-1"], "--budget: '-1' must be a whole number of at least 0"),
        (["--topology", "torus"], "--topology: 'torus' is none of topoopt, fattree, fc, random"),
        (["--arch-mlp-top", "64,1"], "--arch-mlp-top: '64,1' must be whole numbers"),
        (["--arch-interaction-op", "dot"], "--arch-interaction-op: 'dot' is none of cat"),
        (["--mfile", ""], "--mfile: needs a value"),
    ],
)
def test_a_bad_value_names_the_flag(words, message):
    with pytest.raises(TopoplanError) as caught:
        scan(words, KNOWN)
    assert message in str(caught.value)


def test_there_are_nine_programs_under_all_their_names():
    assert len(PROGRAMS) == 9
    for program in PROGRAMS:
        for name in program.names:
            for typed in (name, name.upper(), f"./{name}", f"/opt/flexnet/build/{name.title()}"):
                assert program_of(typed) is program


def test_an_unknown_program_lists_those_that_exist():
    with pytest.raises(TopoplanError) as caught:
        program_of("./gptsim")
    assert "'./gptsim' is no program of FlexNet" in str(caught.value)
    for program in PROGRAMS:
        assert program.names[0] in str(caught.value)
