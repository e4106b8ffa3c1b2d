"""Benchmarks compare with a peer in the same run, or not at all; small stand-ins take the peers' places here."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from topoplan import Host
from topoplan.testing import reference
from topoplan_estimator_measured.reading import read as measurements
from topoplan_layer_profiles.reading import read

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ADAPTERS = sorted((BENCHMARKS / "peers").glob("*.py"))
#: Answers with what it is asked for, and says on the way who it is.
ECHO = """
import json, os, sys
with open(os.environ["STARTS"], "a") as file:
    file.write(sys.argv[1])
for line in sys.stdin:
    print(json.dumps(json.loads(line)), flush=True)
"""


@pytest.fixture
def load(monkeypatch):
    """Return a benchmark as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for variable in ("TOPOPLAN_HPGO_PYTHON", "TOPOPLAN_HIDUP", "TOPOPLAN_HIDUP_PYTHON", "TOPOPLAN_FLEXNET"):
        monkeypatch.delenv(variable, raising=False)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def beside(load):
    return load("beside")


def stand_in(folder, name, source):
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    return path


# Workers -------------------------------------------------------------------------------------------------------------


def test_sides_take_turns_and_the_least_seconds_of_each_count(beside, tmp_path, monkeypatch):
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    monkeypatch.setattr(beside, "CALLS", 2)
    echo = stand_in(tmp_path, "echo", ECHO)
    commands = iter([3.0, 5.0, 2.0, 7.0, 4.0, 6.0])

    def side(name, seconds):
        start = lambda: beside.Worker([sys.executable, "-S", str(echo), name])  # noqa: E731
        return beside.Side(start, {"cpu_s": seconds, "who": name}, lambda: next(commands))

    found = beside.measure({"ours": side("o", 1.0), "peer": side("p", 4.0)})
    assert (tmp_path / "starts").read_text() == "op" * beside.ROUNDS
    assert found["ours"] == (1.0, 1.0, 2.0, {"cpu_s": 1.0, "who": "o"})
    assert found["peer"] == (4.0, 4.0, 5.0, {"cpu_s": 4.0, "who": "p"})


def test_a_side_that_takes_long_is_not_run_again(beside, tmp_path, monkeypatch):
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    echo = stand_in(tmp_path, "echo", ECHO)
    start = lambda: beside.Worker([sys.executable, "-S", str(echo), "x"])  # noqa: E731
    beside.measure({"slow": beside.Side(start, {"cpu_s": 1.0}, lambda: 2 * beside.PATIENCE_S)})
    assert (tmp_path / "starts").read_text() == "x"


def test_a_command_is_charged_for_all_that_it_does(beside, tmp_path):
    busy = "import time\nwhile time.process_time() < 0.05: pass"
    assert beside.command_seconds([sys.executable, "-S", "-c", busy]) >= 0.05
    worker = stand_in(tmp_path, "worker", f"{busy}\nfor line in __import__('sys').stdin: print(line, flush=True)")
    start = lambda: beside.Worker([sys.executable, "-S", str(worker)])  # noqa: E731
    assert beside.one_request(start, {"cpu_s": 0}) >= 0.05


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import sys; sys.stdin.readline(); print('hello')", r"answered 'hello' \(wanted: a line of JSON with cpu_s\)"),
        ("import sys; sys.stdin.readline(); print('{}')", r"answered '\{\}'"),
        ("import sys; sys.stdin.readline()", "ended without an answer"),
    ],
)
def test_a_peer_that_does_not_answer_is_named(beside, tmp_path, capsys, source, said):
    worker = stand_in(tmp_path, "worker", source)
    with pytest.raises(SystemExit) as ended, beside.Worker([sys.executable, "-S", str(worker)]) as started:
        started.ask({})
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert str(worker) in err
    assert re.search(said, err)


def test_a_command_that_fails_has_no_seconds(beside, capsys):
    with pytest.raises(SystemExit) as ended:
        beside.command_seconds(
            [sys.executable, "-S", "-c", "import sys; print('why', file=sys.stderr); raise SystemExit(3)"]
        )
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "status 3" in err
    assert "why" in err


def test_a_variable_that_names_nothing_is_told(beside, monkeypatch, capsys):
    assert beside.path_in("TOPOPLAN_HIDUP", "a folder") is None
    monkeypatch.setenv("TOPOPLAN_HIDUP", "/no/such/folder")
    with pytest.raises(SystemExit) as ended:
        beside.path_in("TOPOPLAN_HIDUP", "a folder")
    assert ended.value.code == 2
    assert "TOPOPLAN_HIDUP=/no/such/folder: nothing is there (wanted: a folder)" in capsys.readouterr().err


# What is around the peers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_adapters_are_python_3_7(path):
    ast.parse(path.read_text(), feature_version=(3, 7))


def test_what_hpgo_prints_does_not_reach_its_answers(beside, tmp_path):
    source = """
    import os

    class Conductor:
        def py_orchestrate(self):
            os.write(1, b"talk past Python\\n")
            return 2.0, [(0, 3, 2, [0, 1])]

    def conductor_from_torch_graph_and_seps(file, profile_batch, batch, seps):
        print("talk", file, profile_batch, batch, seps)
        return Conductor()
    """
    stand_in(tmp_path, "HPGO", source)
    request = {"file": "x.txt", "profile_batch": 1, "batch": 8, "devices": [1, 2]}
    with beside.Worker([sys.executable, "-S", str(BENCHMARKS / "peers/hpgo.py")], [tmp_path]) as worker:
        for _ in range(2):
            answer = worker.ask(request)
            assert (answer["speedup"], answer["stages"]) == (2.0, [[0, 3, 2, [0, 1]]])
        assert worker.end() > 0


def test_hidup_gets_nodes_and_its_progress_is_counted(beside, tmp_path):
    source = """
    import os

    def spmd(nodes, profile, hints):
        os.write(1, b"a plan\\n")
        for cut in range(2):
            os.write(2, b"expanding on cut %d with 3 tensors, 5 states, and 7 paths\\n" % cut)
        first, second, third = nodes
        assert second.all_input_nodes == [first] and second.meta["id"] == 1
        assert second.meta["output_shape"] == ((4, 2), (4,)) and first.meta["output_shape"] == (8,)
        assert second.meta["signatures"] == [({"0": "full"}, ("full", "reduce"))]
        assert second.meta["arg_dict"]["0"] is first
        assert third.args == (second, 1) and profile == {"n_devices": 8}
        return [1, 2, 3]
    """
    stand_in(tmp_path, "spmd", source)
    several = {"output_shape": [[4, 2], [4]], "output_is_tuple": True}
    nodes = [
        {"op": "placeholder", "name": "a", "inputs": [], "meta": {"output_shape": [8]}},
        {
            "op": "call_function",
            "name": "b",
            "inputs": [0],
            "meta": {**several, "signatures": [[{"0": "full"}, ["full", "reduce"]]]},
        },
        {"op": "call_function", "name": "c", "inputs": [1], "item": 1, "meta": {"is_adaptive": True}},
    ]
    with beside.Worker([sys.executable, "-S", str(BENCHMARKS / "peers/hidup.py")], [tmp_path]) as worker:
        answer = worker.ask({"nodes": nodes, "profile": {"n_devices": 8}, "hints": {}})
    assert (answer["stages"], answer["states"], answer["entries"]) == (3, 10, 14)


def test_hidup_is_asked_for_the_trace_of_the_model(load):
    """BERT-SGMoE of two layers has 74 nodes, four of which take an output out of several (as HiDup traces it)."""
    request = load("spmd_search").trace(("bert-sgmoe", 8, 2))
    nodes = request["nodes"]
    assert len(nodes) == 74
    assert sum("item" in node for node in nodes) == 4
    assert [node["op"] for node in nodes[:3]] == ["placeholder", "placeholder", "get_attr"]
    assert nodes[-1]["op"] == "output"
    assert all(k < here for here, node in enumerate(nodes) for k in node["inputs"])
    embedding = next(node for node in nodes if "signatures" in node["meta"])
    assert embedding["meta"]["signatures"][0] == [{"0": "gather_0", "2": "full"}, "gather_0"]
    assert set(map(tuple, request["hints"].values())) == {("replicate",)}
    assert len(request["hints"]) == 2
    assert request["profile"]["device_flops"] == 4139214925014
    json.dumps(request)


# Benchmarks ----------------------------------------------------------------------------------------------------------


def measured(beside, seconds):
    """Return what stands in for measuring: so many seconds of each side."""

    def measure(sides):
        counts = {"speedup": 2.0, "layers": 3, "states": 1, "entries": 1, "stages": 1}
        return {name: beside.Seconds(*seconds[name], counts) for name in sides}

    return measure


def test_planning_divides_by_what_ran_beside_it_alone(load, monkeypatch, capsys):
    planning = load("planning")
    seconds = {
        "plan": (0.005, 0.01, 0.5),
        "hpgo": (0.01, 0.02, 2.0),
        "pipeline": (0.1, 0.2, 4.0),
        "HPGO": (1.0, 1.0, 1.0),
    }
    monkeypatch.setattr(planning.beside, "measure", measured(planning.beside, seconds))
    planning.main(["vgg-19"])
    alone = capsys.readouterr().out
    assert "HPGO" not in alone
    assert "| vgg-19 | 3 | H | warm | 0.00500 | 0.0100 | 0.100 |" in alone
    monkeypatch.setenv("TOPOPLAN_HPGO_PYTHON", sys.executable)
    planning.main(["vgg-19"])
    together = capsys.readouterr().out
    assert "| vgg-19 | 3 | H | warm | 0.00500 | 0.0100 | 0.100 | 1.00 | 200 | 100 | 10 |" in together
    assert "| F | whole | 2 | 0.5 | 0.25 |" in together


def test_planning_plans_from_the_text_that_hpgo_reads(load, tmp_path):
    planning = load("planning")
    file = planning.write("vgg-19", tmp_path)
    assert read(file) == planning.profiles.profile("vgg-19")
    request = {"file": str(file), "profile_batch": 32, "batch": 2048, "devices": [8, 16]}
    found = planning.plan_hpgo(request)
    assert (found["layers"], found["split"]) == (25, "15|1 @18")
    assert found["speedup"] == pytest.approx(14.6954611859656, rel=1e-12)  # as HPGO 0.9.2 says
    assert planning.plan_pipeline(request) == {}


def test_spmd_search_divides_by_what_ran_beside_it_alone(load, monkeypatch, capsys):
    spmd_search = load("spmd_search")
    seconds = {"ours": (0.1, 0.2, 0.0), "HiDup": (0.4, 0.6, 0.0)}
    monkeypatch.setattr(spmd_search.beside, "measure", measured(spmd_search.beside, seconds))
    cases = [("bert-sgmoe", 8, 2)]
    spmd_search.block("models", cases, None, None)
    alone = capsys.readouterr().out
    assert "HiDup" not in alone
    assert "| bert-sgmoe | 8 | 2 | 1 | 1 | 0.100 | 0.200 | 1.00 |" in alone
    spmd_search.block("models", cases, Path(), Path(sys.executable))
    together = capsys.readouterr().out
    assert "| 0.100 | 0.200 | 1.00 | 0.400 | 0.600 | 4.0 | 3.0 |" in together
    assert "HiDup's seconds over ours, warm: 4" in together


def flexnet(folder, initial_ms):
    """Return a program that answers as one around FlexNet does."""
    program = folder / "flexnet"
    answer = {"cpu_s": 4.0, "initial_ms": initial_ms, "best_ms": 50.0}
    source = f"""
    #!{sys.executable} -S
    import json, sys
    for line in sys.stdin:
        request = json.loads(line)
        assert set(request) == {{"preset", "servers", "measures", "proposals", "seed"}}
        assert json.load(open(request["measures"]))["batch_size"] == 16384
        print({json.dumps(answer)!r}, flush=True)
    """
    program.write_text(textwrap.dedent(source).lstrip())
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("initial_ms", "ratios"), [(60.0, "| 8.0 | 4.0 |"), (61.0, "| - | - |")])
def test_search_speed_divides_by_what_searched_the_same(load, tmp_path, monkeypatch, capsys, initial_ms, ratios):
    search_speed = load("search_speed")
    program = flexnet(tmp_path, initial_ms)
    ours = {"fluid": 0.5, "flexnet": 1.0}

    def measure(sides):
        found = {}
        for name, side in sides.items():
            answer = {"cpu_s": ours[name], "initial_ms": 60.0, "best_ms": 55.0} if name in ours else None
            if answer is None:
                with side.start() as worker:
                    answer = worker.ask(side.request)
            found[name] = search_speed.beside.Seconds(answer["cpu_s"], answer["cpu_s"], 0.0, answer)
        return found

    monkeypatch.setattr(search_speed.beside, "measure", measure)
    monkeypatch.setattr(search_speed, "BESIDE", (("dlrm16", 16, 200),))
    search_speed.beside_flexnet(part=1, rows=None)
    alone = capsys.readouterr().out
    assert "FlexNet" not in alone
    assert "| dlrm16 | 16 | 200 | 400 | 200 | 55.000 | 55.000 |" in alone
    monkeypatch.setenv("TOPOPLAN_FLEXNET", str(program))
    search_speed.beside_flexnet(part=1, rows=None)
    out, err = capsys.readouterr()
    assert f"| 400 | 200 | 50 | 55.000 | 55.000 | 50.000 {ratios}" in out
    assert ("initially 60.0 ms of ours, 61.0 ms of FlexNet" in err) == (initial_ms == 61.0)


def test_flexnet_gets_the_operator_times_in_its_own_form(load, tmp_path):
    search_speed = load("search_speed")
    file = search_speed.write_measures("dlrm16", tmp_path)
    assert json.loads(Path(file).read_text())["measurements"][0]["pc_str"].startswith("2-1-")
    written, kept = measurements(Path(file)), search_speed.profiles.profile("dlrm16")
    assert (written.entries, written.batch_size, written.ngpus) == (kept.entries, kept.batch_size, kept.ngpus)


def test_the_packet_simulator_runs_beside_the_replays(load, tmp_path, capsys):
    agreement = load("agreement")
    program = tmp_path / "htsim_tcp_flat"
    busy = "import sys, time\nopen(sys.argv[4], 'w')\nwhile time.process_time() < 0.05: pass"
    program.write_text(f"#!{sys.executable} -S\n{busy}\nassert sys.argv[1::2][:2] == ['-flowfile', '-ofile']\n")
    program.chmod(0o755)
    row = {"file": "a.fbuf", "network": "flat", "args": "-speed 10000 -nodes 17"}
    plan, host = reference.plan(), Host.discover()
    seconds = agreement.packet_seconds(tmp_path, row, plan, host)
    assert 0.05 <= seconds < 5
    with pytest.raises(SystemExit):
        agreement.packet_seconds(tmp_path, row | {"network": "fattree"}, plan, host)
    assert "no program htsim_tcp_fattree, which row a.fbuf ran in" in capsys.readouterr().err
    replayed = agreement.Row("a.fbuf", "flat", 10.0, (1.0,), (1.01,), None, 0.01, 0.005)
    agreement.show([replayed], "files", "coupled")
    assert "packet/first" not in capsys.readouterr().out
    agreement.show([replayed._replace(packet_cpu=2.0)], "files", "coupled")
    out = capsys.readouterr().out
    assert "packet simulator's CPU seconds over ours, first: 200" in out
    assert "packet simulator's CPU seconds over ours, again: 400" in out


@pytest.mark.parametrize(
    ("network", "size", "k", "uplinks"), [("aggosft", "-k 4 -nup 1", 4, 1), ("fattree", "-nodes 16", 4, 2)]
)
def test_a_row_names_its_fat_tree(load, network, size, k, uplinks):
    agreement = load("agreement")
    row = {"link_gbps": "100", "network": network, "args": f"-simtime 3600.1 {size} -rttnet 1000 -rttrack 1000"}
    fabric = agreement.fabric_of(row, reference.plan(), Host.discover())
    assert fabric.n_switches == k * (k // 2 + uplinks) + k // 2 * uplinks
