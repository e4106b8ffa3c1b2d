"""What flags become: the experiment, the line of `topoplan optimize` that is the same, the table, the warnings."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topoplan_engine
from topoplan import TopoplanError, cli
from topoplan_command_flexnet.flags import FLAGS
from topoplan_command_flexnet.programs import PROGRAMS, program_of
from topoplan_command_flexnet.scan import scan
from topoplan_command_flexnet.spell import command_line
from topoplan_command_flexnet.story import rows_of, warnings_of
from topoplan_command_flexnet.translate import experiment_of, reset_every, settings_of
from topoplan_engine.reporting import runs

PROFILING = (
    "-ll:gpu 1 -ll:cpu 1 -dm:memoize --arch-mlp-bot 1024-1024 --search-budget 1 --net-opt 1 ---batch-size 4096 "
    "--nsimnode 16 --big-gpu 4 --simulator-workspace-size 38654705664 --measure"
)


def meaning(program, line):
    called = program_of(program)
    found = scan(shlex.split(line), (*FLAGS, *called.flags))
    return called, found, settings_of(found)


def experiment(line, program="dlrmsim", seed=0):
    called, _, settings = meaning(program, line)
    return experiment_of(called, settings, seed)


def rows(line):
    _, found, settings = meaning("dlrmsim", line)
    return {flag: became for flag, _, became in rows_of(found, settings)}


def warnings(line):
    _, found, settings = meaning("dlrmsim", line)
    return warnings_of(found, settings)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `topoplan`, but search nothing; return (status, stdout, stderr, experiment)."""

    def run(*words):
        ran = []
        monkeypatch.setattr(topoplan_engine, "run_and_report", lambda experiment, **how: ran.append(experiment))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err, ran[0] if ran else None

    return run


def test_flexnets_defaults():
    found = experiment("--topology random")
    cluster = found.cluster
    assert (cluster.servers, cluster.gpus_per_server, cluster.gpus_per_device, cluster.degree) == (1, 1, 1, 4)
    # 20 * 1024 * 1024 bytes/ms between GPUs, and an eighth of it between hosts.
    assert found.cluster.inter_gpu_bandwidth_gbps == pytest.approx(20 * 2**20 * 8 * 1e3 / 1e9)
    assert found.cluster.interface_bandwidth_gbps == pytest.approx(20 * 2**20 / 8 * 8 * 1e3 / 1e9)
    assert (found.cluster.latency_us, found.run.batch_size, found.run.budget) == (0, 64, 0)
    assert (found.simulator.name, found.estimator.name) == ("flexnet", "roofline")
    (chain,) = found.searchers
    assert chain.options == {
        "hosts": "neighbouring",
        "temperature": "absolute",
        "alpha": 1.0,
        "propagation": 0.0,
        "block": 0.0,
        "reset-every": 1,
    }


def test_all_that_is_set_arrives():
    found = experiment(
        "-ll:gpu 1 --nsimnode 16 --big-gpu 4 --batch-size 4096 --interface-bandwidth 100 --inter-gpu-bandwidth 256 "
        "--network-latency 2 --node-degree 6 --net-opt 1 --topology topoopt --mfile m.json --taskgraph t.fbuf "
        "--search-budget 5000 --search-alpha 0.2 --enable-propagation --import a.txt --export b.txt "
        "--arch-mlp-top 64-32-1 --embedding-bag-size 100",
        seed=7,
    )
    cluster, run = found.cluster, found.run
    assert (cluster.servers, cluster.gpus_per_device, cluster.degree, cluster.latency_us) == (16, 4, 6, 2)
    assert (cluster.interface_bandwidth_gbps, cluster.inter_gpu_bandwidth_gbps) == (100, 256)
    assert (run.batch_size, run.budget, run.seed, run.strategy) == (4096, 5000, 7, "strategy=a.txt")
    assert found.model.options == {"dialect": "flexnet", "arch-mlp-top": (64, 32, 1), "embedding-bag-size": 100}
    assert (found.topology.name, found.topology.options) == ("topoopt", {"rules": "released", "paths": 1})
    assert found.estimator.options == {"file": "m.json", "missing": "refuse"}
    assert [searcher.name for searcher in found.searchers] == ["mcmc", "totientperm"]
    assert found.searchers[0].options | {"alpha": 0.2, "propagation": 0.25, "reset-every": 50} == (
        found.searchers[0].options
    )
    assert [(exporter.name, path) for exporter, path in found.outputs] == [
        ("flatbuffer", "t.fbuf"),
        ("strategy", "b.txt"),
    ]


def test_net_opt_is_rings_and_strides():
    found = experiment("--topology topoopt --net-opt 1")
    assert (found.topology.options["rules"], found.searchers[1].options["rules"]) == ("released", "released")
    assert "hosts" not in found.searchers[0].options


def test_without_net_opt_parts_stand_in_a_row_and_totientperm_is_off():
    for line in ("--topology topoopt --net-opt 0", "--topology topoopt"):
        found = experiment(line)
        assert found.searchers[0].options["hosts"] == "neighbouring"
        assert (found.topology.options["rules"], found.searchers[1].options["rules"]) == ("greedy", "greedy")
        assert "TotientPerm is off" in warnings(line)[0]
    switched = experiment("--topology fattree --net-opt 0")
    assert switched.searchers[0].options["hosts"] == "neighbouring"
    assert "rules" not in switched.topology.options
    assert "TotientPerm" not in warnings("--topology fattree --net-opt 0")[0]


@pytest.mark.parametrize(
    ("given", "name"),
    [("fattree", "bigswitch"), ("fc", "fully-connected"), ("random", "random"), ("topoopt", "topoopt")],
)
def test_topologies(given, name):
    assert experiment(f"--topology {given}").topology.name == name


@pytest.mark.parametrize(
    ("line", "interfaces"),
    [
        ("--topology fattree --node-degree 8 --nsimnode 16", 1),
        ("--topology fc --nsimnode 16", 15),
        ("--topology fc", 1),
        ("--topology topoopt --nsimnode 16", 4),
        ("--topology random --node-degree 3 --nsimnode 16", 3),
    ],
)
def test_hosts_have_the_interfaces_that_flexnet_uses(line, interfaces):
    assert experiment(line).cluster.degree == interfaces


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.names[0])
def test_every_program_has_a_frontend_in_flexnets_dialect(program):
    model = experiment("--topology fc", program.names[0]).model
    assert (model.name, model.options) == (program.frontend, {"dialect": "flexnet"})


def test_underscores_of_ncf():
    assert experiment("--topology fc --unum_per_table 9 --ntables 2", "ncfsim").model.options == {
        "dialect": "flexnet",
        "unum-per-table": 9,
        "ntables": 2,
    }


def test_the_last_of_two_counts():
    assert experiment("--topology fc --budget 3 --search-budget 5").run.budget == 5
    assert (
        rows("--topology fc --budget 3 --search-budget 5")["--budget"] == "nothing: --search-budget follows and counts"
    )


def test_resets_are_a_hundredth_of_the_budget():
    assert [reset_every(budget) for budget in (0, 99, 250, 5000, 10**6)] == [1, 1, 2, 50, 1000]


def test_a_missing_topology_is_an_error():
    with pytest.raises(TopoplanError, match="--topology is missing: name one of topoopt, fattree, fc, random"):
        experiment("--nsimnode 4")


@given(
    st.fixed_dictionaries(
        {"--topology": st.sampled_from(["topoopt", "fattree", "fc", "random"])},
        optional={
            "--nsimnode": st.integers(1, 512).map(str),
            "--big-gpu": st.integers(0, 8).map(str),
            "-b": st.integers(1, 10**6).map(str),
            "--interface-bandwidth": st.integers(1, 1600).map(str),
            "--network-latency": st.integers(0, 50).map(str),
            "--node-degree": st.integers(1, 16).map(str),
            "--budget": st.integers(0, 10**6).map(str),
            "--alpha": st.floats(1e-6, 1e6).map(lambda value: f"{value:.6g}"),
            "--mfile": st.sampled_from(["m.json", "a folder/m.json"]),
            "--taskgraph": st.sampled_from(["t.fbuf", "odd name.out"]),
            "--import": st.just("s.txt"),
            "--arch-mlp-top": st.lists(st.integers(1, 4096), min_size=2, max_size=9).map(
                lambda w: "-".join(map(str, w))
            ),
        },
    ),
    st.booleans(),
)
@pytest.mark.slow
def test_the_line_that_is_shown_asks_for_the_same(flags, propagates):
    words = [word for pair in flags.items() for word in pair] + ["--enable-propagation"] * propagates
    wanted = experiment(shlex.join(words), seed=3)
    got = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "run_and_report", lambda experiment, **rest: got.append(experiment))
        with pytest.raises(SystemExit):
            cli.main(shlex.split(command_line(wanted))[1:])
    (found,) = got
    assert command_line(found) == command_line(wanted)
    assert (found.cluster, found.run) == (wanted.cluster, wanted.run)
    assert [path for _, path in found.outputs] == [path for _, path in wanted.outputs]


def test_every_flag_and_word_has_a_row():
    table = rows("-ll:zsize 20000 -dm:memoize --degree 4 --gpu-dram-bandwidth 9 --no-such 3 --topology fattree")
    assert table["-ll:zsize"] == table["-dm:memoize"] == "nothing: for the runtime system below FlexNet"
    assert table["--degree"] == "--degree 1: FlexNet leads one interface of a host to the switch"
    assert table["--gpu-dram-bandwidth"] == "nothing: FlexNet reads it and never uses it"
    assert table["--no-such"] == "nothing: FlexNet does not know it"
    assert table["--topology"].startswith("-t bigswitch")
    assert table["--interface-bandwidth"] == "--interface-bandwidth-gbps 20.97152"


def test_long_lists_stay_short():
    became = rows(f"--topology fc --arch-embedding-size {'-'.join(['10000000'] * 16)}")["--arch-embedding-size"]
    assert became == "-o arch-embedding-size=10000000-10000000-... (16 numbers)"


def test_warnings_say_what_flexnet_would_have_done():
    told = warnings("--degree 8 ---batch-size 4096 \u2013mfile m.json --nodes 3 --net-opt 1 --bugdet 5")
    assert told == [
        "--degree is read as --node-degree; FlexNet skips it and takes its default, 4",
        "---batch-size is read as --batch-size; FlexNet skips it and takes its default, 64",
        "\u2013mfile is read as --mfile; FlexNet skips it and goes without",
        "without effect, as the table says: --nodes",
        "skipped, as FlexNet skips it: --bugdet 5 (did you mean --budget?)",
    ]
    assert warnings("--net-opt 1 --budget 5") == []


def test_what_is_lost_here_is_told():
    (parameters, cuts) = warnings("--net-opt 1 --enable-parameter-parallel --max-localsz 8")
    assert parameters.startswith("--enable-parameter-parallel does something in FlexNet and nothing here")
    assert cuts.startswith("--max-localsz does something in FlexNet and nothing here")
    assert warnings("--net-opt 1 --mfile m --max-localsz 8") == ["without effect, as the table says: --max-localsz"]
    assert "--net-opt 1" in warnings("")[0]


def test_the_command_shows_the_table_and_runs(run):
    status, out, err, ran = run(
        "flexnet", "--seed", "5", "./dlrmsim", "--topology", "fc", "--net-opt", "1", "--nodes", "2"
    )
    assert status == 0
    assert out.splitlines()[0].split() == ["FLAG", "VALUE", "BECAME"]
    assert "--topology" in out
    assert err == "warning: without effect, as the table says: --nodes\n"
    assert ran.run.seed == 5
    assert f"the same in one line: {command_line(ran)}\n" in out


def test_json_leaves_standard_output_alone(run):
    status, out, err, ran = run("flexnet", "--json", "dlrmsim", "--topology", "fc")
    assert (status, out) == (0, "")
    assert "FLAG" in err
    assert ran is not None


def test_words_behind_the_program_are_flexnets(run):
    status, _, err, ran = run("flexnet", "dlrmsim", "--topology", "fc", "--json", "--seed", "9", "--help")
    assert status == 0
    assert ran.run.seed == 0
    for words in ("--json", "--seed 9", "--help"):
        assert f"skipped, as FlexNet skips it: {words}" in err


def test_measuring_says_what_replaces_it(run):
    status, out, err, ran = run("flexnet", "./dlrmsim", *shlex.split(PROFILING))
    assert (status, ran) == (2, None)
    assert "--measure" in out
    (error,) = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert "`topoplan profile operators dlrm -o dialect=flexnet" in error
    assert "--batch-size 4096 --servers 16 --gpus-per-device 4` measures" in error
    assert "writes measure_4096_16.json, which --mfile takes" in error
    assert "roofline" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gptsim"], "'gptsim' is no program of FlexNet (programs: dlrmsim, alexnetsim"),
        (["dlrmsim", "--nsimnode", "four"], "--nsimnode: 'four' must be a whole number"),
        (["dlrmsim", "--nsimnode", "4"], "--topology is missing"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, words, message):
    status, _, err, ran = run("flexnet", *words)
    assert (status, ran) == (2, None)
    (error,) = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert error.startswith("error: ")
    assert message in error
