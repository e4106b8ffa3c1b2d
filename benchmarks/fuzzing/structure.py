"""Inputs whose structure is damaged, and their readers: studies, shares, provenance, YAML, archives, tables.

A study is read and unrolled to its runs.  What it shows is written with results of a run that is made once: tables,
pages, figures and CSV must not be steered by a name.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import functools
import gzip
import io
import json
import math
import re
import tarfile
import tomllib
import warnings
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs

from fuzzing.draws import HOST, folder, plans, programs, stored, texts, written
from fuzzing.mutators import HOSTILE, NUMBERS, bytes_of, json_of, structure_of, text_of
from fuzzing.watch import Reader
from topoplan import TopoplanError
from topoplan.errors import TopoplanWarning
from topoplan_command_sensitivity.provenance import check_inputs, experiment_of
from topoplan_command_share.shared_cluster import shared_cluster_from
from topoplan_command_show.command import plan_rows
from topoplan_engine import ClusterOptions, Experiment, RunOptions
from topoplan_engine.experiment import build_cluster, experiment_from_document, with_machines
from topoplan_engine.exporting import read_plan
from topoplan_engine.files import read_unpacked
from topoplan_engine.folders import files_of
from topoplan_engine.reading import simulated_plan
from topoplan_engine.reporting.figures import write_figure
from topoplan_engine.reporting.printing import table
from topoplan_engine.reporting.strategy import print_strategy
from topoplan_engine.search.setup import chosen_components
from topoplan_network_files import Defaults, read_network
from topoplan_studies.hypotheses import hypothesis_tests
from topoplan_studies.measure import measure
from topoplan_studies.page import section
from topoplan_studies.plot import plot
from topoplan_studies.prices import default_prices
from topoplan_studies.problems.best import best_known
from topoplan_studies.results import network_results
from topoplan_studies.rows import write_rows
from topoplan_studies.runspecs import run_specs
from topoplan_studies.study import Study, study_from
from topoplan_studies.tables import StudyReport, as_json, study_table

__all__ = ["readers_of_structure"]

#: Runs, servers and devices of a study that is unrolled: each network is built, and that is what most of the time is.
_FEW_RUNS, _FEW = 32, 64
#: One of this many reports has its figure drawn, which takes a hundred times as long.
_FIGURES = 50

_STUDY = """
title = "Small"
source = "nobody"
budget = 0
seeds = [0, "3..4"]
[cluster]
servers = 2
[vary]
interface-bandwidth-gbps = [10, 100]
[[machine]]
name = "near"
latency-us = 1
[[machine]]
name = "far"
latency-us = 100
[[model]]
name = "A"
use = "alexnet"
batch-size = 16
[[network]]
name = "panel"
use = "topoopt"
[[network]]
name = "tree"
use = "fattree:k=4"
costs-as = "panel"
[[planner]]
name = "chain"
[[planner.searcher]]
use = "mcmc"
every = 3
[[planner]]
[[planner.searcher]]
use = "random"
[[claim]]
says = "the panel is faster"
faster = "chain on panel"
slower = "random on tree"
[[published]]
model = "A"
of = "chain on panel"
iteration-time = [1.0, "none", 0.5, 2]
memory = [1, 2, 3, 4]
"""
_SHOWN = """
title = "Shown"
source = "nobody"
budget = 0
[cluster]
servers = 2
[[model]]
name = "A"
use = "alexnet"
[[network]]
name = "switch"
use = "bigswitch"
[[network]]
name = "tree"
use = "fattree"
[[claim]]
says = "a switch is faster"
faster = "switch"
slower = "tree"
"""
_BEST = """problem,seconds,bound,searchers,seed,evaluations,version
dlrm16-panel-d4,0.01,0.005,"mcmc+relink:every=4",0,1000,0.1.0
moe64,1.5e-2,0.01,"hpgo, pipeline",3,20,0.1.0
"""
_GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="b" for="edge" attr.name="bandwidth" attr.type="double"><default>1e9</default></key>
<key id="k" for="node" attr.name="kind" attr.type="string"/>
<graph edgedefault="undirected"><node id="0"><data key="k">host</data></node>
<node id="1"><data key="k">host</data></node>
<edge source="0" target="1"><data key="b">2e9</data></edge></graph></graphml>
"""
_XML = (
    *(
        "<!DOCTYPE a [<!ENTITY b 'c'>]>",
        "<!DOCTYPE a SYSTEM 'file:///etc/hostname'>",
        "&b;",
        "<graph>",
        "</graph>",
        "<y:x/>",
    ),
    *("<edge source='0' target='0'/>", "<node id='2'/>", "<![CDATA[", "<!--", "-->", "<?x?>", "xmlns='a'", "directed"),
)
_ENCODINGS = ("utf-8", "utf-16", "utf-16-be", "utf-32", "latin-1", "utf-7", "cp037")


class SteeredError(Exception):
    """A name steers what shows it."""


def _documents(*patterns: str) -> list[dict[str, Any]]:
    return [tomllib.loads(text) for text in texts(*patterns)]


@functools.cache
def _studies() -> list[dict[str, Any]]:
    return [*_documents("experiments/*.toml"), *[tomllib.loads(_STUDY)] * 6, *[tomllib.loads(_SHOWN)] * 3]


@functools.cache
def _shares() -> list[dict[str, Any]]:
    shared = _documents("experiments/shared-cluster.toml")[0]
    first, second = (network.get("name", network["use"]) for network in shared["network"][:2])
    claim = {"says": "one is faster", "faster": first, "slower": second}
    return [shared, {**shared, "claim": [claim]}]


def _as_toml(value: Any) -> Any:
    """Return a value without what TOML cannot say: nothing is a day there."""
    if isinstance(value, dict):
        return {str(key): _as_toml(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_toml(item) for item in value]
    return dt.date(2000, 1, 1) if value is None else value


def _drawn(bases: list[dict[str, Any]], rng: Random) -> dict[str, Any]:
    document = _as_toml(structure_of(rng, bases))
    return document if isinstance(document, dict) else {"x": document}


def _is_small(study: Study) -> bool:
    several = (study.models, study.networks, study.planners, study.seeds, *study.vary.values())
    hosts = [study.cluster, *(machine.cluster for machine in study.machines)]
    servers = [
        *(one.servers * one.gpus_per_server for one in hosts if not one.devices),
        *(len(one.devices) + max(one.devices, default=0) for one in hosts),
        *(
            int(value)
            for key, values in study.vary.items()
            if key in ("servers", "gpus-per-server")
            for value in values
        ),
    ]
    return math.prod(map(len, several)) <= _FEW_RUNS and max(map(int, servers)) <= _FEW


def read_study(document: dict[str, Any]) -> None:
    """Read a study, and unroll it where it is small."""
    study = study_from(document, "study", "study.toml")
    if not study.problems and _is_small(study):
        run_specs(study, HOST, default_prices(), None)


def read_share(document: dict[str, Any]) -> None:
    """Read a shared cluster."""
    shared_cluster_from(document, "share", "share.toml")


def read_experiment(document: dict[str, Any]) -> None:
    """Read an experiment, build its cluster, and make its components."""
    experiment = experiment_from_document(document, "experiment.toml")
    if experiment.cluster.servers * experiment.cluster.gpus_per_server <= _FEW and not experiment.cluster.devices:
        build_cluster(experiment.cluster, HOST)
        chosen_components(HOST, experiment)


@functools.cache
def _run() -> dict[str, Any]:
    """Return what comes of a run."""
    small = Experiment(model="alexnet", cluster=ClusterOptions(servers=2), run=RunOptions(budget=0))
    return measure(HOST, small)


def read_shown(given: tuple[dict[str, Any], bool]) -> None:
    """Show results of a study in all ways, a figure sometimes; no text in them may steer anything."""
    document, draws_figure = given
    study = study_from(document, "f", "f.toml")
    if study.problems or not _is_small(study) or study.published:
        return
    specs, prices = run_specs(study, HOST, default_prices(), None), default_prices()
    results = network_results(specs, [_run()] * len(specs), prices)
    report = StudyReport(
        study=study, results=results, tests=hypothesis_tests(study, results), prices=prices, measured=False
    )
    page = section(report, "topoplan compare", "f.svg")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        study_table(report).print(study.title)
    json.dumps(as_json(report), default=str)
    path = folder() / "rows.csv"
    write_rows(report, path)
    check_harmless(page + printed.getvalue())
    if re.search(r"<(?!/?details|/?summary)", page) or re.search(r"(?<!\\)\]\((?!f\.svg\))", page):
        raise SteeredError("a page holds HTML, or a link that a name brought")
    for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")):
        if any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row):
            raise SteeredError(f"a cell of CSV is a formula: {row}")
    if draws_figure:
        write_figure(plot(report), folder() / "f.svg")


def draw_shown(rng: Random) -> tuple[dict[str, Any], bool]:
    """Return a study whose names are odd, and whether its figure is drawn."""
    document = json.loads(json.dumps(tomllib.loads(_SHOWN)))
    for entry in (*document["model"], *document["network"]):
        if rng.random() < 0.6:
            words = rng.choices((*HOSTILE, "a", "b "), k=rng.randrange(1, 4))
            old, entry["name"] = entry["name"], "".join(words)
            for claim in document["claim"]:
                claim.update({end: entry["name"] for end in ("faster", "slower") if claim[end] == old})
    for key in ("title", "source"):
        document[key] = rng.choice((document[key], *HOSTILE))
    document["claim"][0]["says"] = rng.choice(("x", *HOSTILE))
    return (document if rng.random() < 0.7 else _drawn([document], rng)), rng.randrange(_FIGURES) == 0


def check_harmless(text: str) -> None:
    """Complain of signs that a terminal would obey."""
    for char in text:
        if not char.isprintable() and char != "\n":
            raise SteeredError(f"{char!r} is shown as it is")


@functools.cache
def _records() -> list[Any]:
    return [document["provenance"] for document in _json_plans()]


def draw_provenance(rng: Random) -> Any:
    """Return what a plan says of how it was made, damaged."""
    return structure_of(rng, [record for record in _records() if record.get("components")])


def read_provenance(record: Any) -> None:
    """Make the experiment of a plan again, and compare its inputs."""
    if not isinstance(record, Mapping):
        return
    plan = attrs.evolve(plans()[2], provenance=record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        check_inputs(plan, experiment_of(plan, "a.json"), "a.json", HOST)


@functools.cache
def _json_plans() -> list[Any]:
    return [json.loads(data) for data in written("json", plans())]


def show_plan(document: Any) -> None:
    """Read a plan of odd structure and odd names, and show it."""
    data = json.dumps(document).encode("utf-8", "surrogatepass")
    path = stored("shown.json", data)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        plan = simulated_plan(path, HOST)
        table("shown.json", plan_rows(attrs.evolve(plan, cluster=with_machines(plan.cluster, HOST))))
        print_strategy(plan)
    check_harmless(out.getvalue())


_DEFAULTS = Defaults(bandwidth=1e9, latency=1e-6)


def read_net(name: str, data: bytes) -> None:
    """Read a network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        read_network(data, name, _DEFAULTS)


_YAML = (
    "&a ",
    "*a",
    "<<: *a",
    "<<: [*a, *a]",
    "!!set ",
    "!!omap ",
    "!!binary ",
    "? ",
    "- ",
    "---",
    "...",
    "|",
    "%YAML 1.2",
)


def draw_yaml(rng: Random) -> bytes:
    """Return an InfraGraph file of another structure, with aliases, or with signs of YAML between."""
    import yaml

    bases = _yaml_documents()
    if rng.random() < 0.5:
        text = rng.choice(_yaml_texts())
        for _ in range(rng.choice((1, 2, 4))):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(_YAML) + text[at:]
        return text.encode()
    document = structure_of(rng, bases, aliases=True)
    try:
        text = yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
        return str(text).encode("utf-8", "replace")
    except UnicodeEncodeError:  # half a pair of surrogates, which no writer of YAML takes
        return b"name: \xed\xa0\x80\n" + rng.choice(_yaml_texts()).encode()


@functools.cache
def _yaml_texts() -> list[str]:
    small = "name: x\ndevices:\n- {name: h, components: [{name: c, choice: xpu}, {name: p, choice: nic, count: 2}]}\n"
    small += "- {name: s, components: [{name: h, choice: device}, {name: p, choice: port, count: 4}]}\n"
    small += "instances: [{name: h, device: h, count: 2}, {name: s, device: s}]\n"
    small += "links: [{name: l, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 100}}}]\n"
    small += "edges: [{ep1: {instance: h, component: p}, ep2: {instance: s, component: p}, link: l}]\n"
    return [small, *(data.decode() for data in written("infragraph", plans()))]


@functools.cache
def _yaml_documents() -> list[Any]:
    import yaml

    return [yaml.safe_load(text) for text in _yaml_texts()]


def draw_graphml(rng: Random) -> bytes:
    """Return GraphML with tags and declarations between, in some encoding."""
    text = text_of(rng, [_GRAPHML], _XML)
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.choice([0, *(found.start() for found in re.finditer("<", text))])
        text = text[:at] + rng.choice(_XML) + text[at:]
    encoding = rng.choice(("utf-8", *_ENCODINGS))
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    return mark + text.replace("UTF-8", rng.choice((encoding, "UTF-8"))).encode(encoding, "replace")


def draw_best(rng: Random) -> bytes:
    """Return a table of best plans with odd fields, lines and line ends."""
    text = text_of(rng, [_BEST])
    if rng.random() < 0.6:
        cells = [line.split(",") for line in text.split("\n")]
        for _ in range(rng.choice((1, 2))):
            row = rng.choice(cells)
            row[rng.randrange(len(row))] = rng.choice((*NUMBERS, "", '"', "\r", "\0", "a,b"))
        text = "\n".join(",".join(row) for row in cells)
    text = text.replace("\n", rng.choice(("\n", "\n", "\r\n", "\r")))
    return text.encode(rng.choice(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig")), "replace")


def read_best(data: bytes) -> None:
    """Read a table of best plans; times are positive and not below their bounds."""
    where = folder() / "best"
    where.mkdir(exist_ok=True)
    (where / "best.csv").write_bytes(data)
    for row in best_known(where).values():
        if not (0 < row.seconds < math.inf and 0 < row.bound < math.inf and row.gap >= -1e-6):
            raise SteeredError(f"a best plan that cannot be: {row}")


def draw_zip(rng: Random) -> bytes:
    """Return a ``.pt2`` file: other members, names, methods, or one that unpacks to far more."""
    base = json.dumps(programs()[0]) if rng.random() < 0.5 else json_of(rng, programs()).decode("utf-8", "replace")
    content = io.BytesIO()
    methods = (*[zipfile.ZIP_STORED] * 3, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    names = (
        "x/models/model.json",
        "models/model.json",
        "models/a.json",
        "x/y/models/m.json",
        "../models/m.json",
        "a/b",
        "/",
    )
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w", rng.choice(methods)) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name in rng.choices(names, k=rng.choice((1, 1, 2, 3))):
            match rng.randrange(8):
                case 0:
                    archive.writestr(
                        name, rng.choice(("[],", "[", " ", '"a",')) * rng.choice((10, 10**3, 10**5, 10**5, 10**7))
                    )
                case 1:
                    archive.writestr(name, bytes_of(rng, [content.getvalue() or b"PK"]))
                case _:
                    archive.writestr(name, base)
    data = content.getvalue()
    return bytes_of(rng, [data]) if rng.random() < 0.5 else data


def read_zip(data: bytes) -> None:
    """Read a module that torch.export.save wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        HOST.make("frontend", "torch", {"file": str(stored("zip.pt2", data))}).build(None)


def draw_gzip(rng: Random) -> bytes:
    """Return a packed plan: several members, a tail, other bytes, or far more than a plan."""
    data = gzip.compress(rng.choice((b"{}", b"[" * 10**6, b"x" * 100, b"")), mtime=0) * rng.choice((1, 1, 2, 50))
    return bytes_of(rng, [data]) if rng.random() < 0.7 else data + rng.choice((b"", b"\0" * 100, b"tail"))


def draw_tar(rng: Random) -> bytes:
    """Return an archive of traces: other names, kinds and sizes of members, twice the same, and links."""
    traces = files_of(_trace(), "a")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in traces.items():
            member = tarfile.TarInfo(rng.choice((*[name] * 20, "../x", "/etc/x", "a/b", name.upper(), "x" * 300)))
            member.size = len(data)
            if rng.random() < 0.05:
                member.type = rng.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"S"))
                member.linkname = "/etc/passwd"
            archive.addfile(member, io.BytesIO(data))
    data = content.getvalue()
    return bytes_of(rng, [data]) if rng.random() < 0.4 else data


@functools.cache
def _trace() -> bytes:
    return HOST.make("exporter", "chakra").write(plans()[0])


def read_trace(data: bytes) -> None:
    """Read execution traces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TopoplanWarning)
        read_plan(HOST, stored("a.et.tar", data))


def _of_gzip(data: bytes) -> None:
    path: Path = stored("p.json.gz", data)
    with contextlib.suppress(TopoplanError):
        HOST.make("exporter", "json").read(read_unpacked(path), str(path))


def _experiments() -> list[dict[str, Any]]:
    return _documents("examples/*.toml")


def _shown_plan(rng: Random) -> Any:
    return structure_of(rng, _json_plans())


def _node_links() -> list[Any]:
    return [json.loads(data) for data in written("node-link", plans())]


def readers_of_structure() -> tuple[Reader, ...]:
    """Return the readers of inputs whose structure is damaged."""
    studies, shares, experiments, nets = _studies(), _shares(), _experiments(), _node_links()
    node_link = partial(read_net, "a.json")
    return (
        Reader("study", "studies, structure changed, unrolled", 40, partial(_drawn, studies), read_study),
        Reader("study-shown", "studies of odd names, in tables, pages and figures", 2, draw_shown, read_shown),
        Reader("share-structure", "shares, structure changed", 40, partial(_drawn, shares), read_share),
        Reader(
            "experiment-structure", "experiments, structure changed", 20, partial(_drawn, experiments), read_experiment
        ),
        Reader("provenance", "provenance of plans, structure changed", 20, draw_provenance, read_provenance),
        Reader("plan-shown", "plans, structure changed, shown", 3, _shown_plan, show_plan),
        Reader("yaml", "networks in YAML, structure and aliases changed", 10, draw_yaml, partial(read_net, "a.yaml")),
        Reader("node-link-values", "networks in JSON, values changed", 20, lambda rng: json_of(rng, nets), node_link),
        Reader(
            "graphml-structure", "networks in GraphML, tags changed", 15, draw_graphml, partial(read_net, "a.graphml")
        ),
        Reader("best", "tables of best plans", 30, draw_best, read_best),
        Reader("zip", ".pt2 files, members changed", 4, draw_zip, read_zip),
        Reader("gzip", "packed plans", 10, draw_gzip, _of_gzip),
        Reader("tar", "execution traces, members changed", 5, draw_tar, read_trace),
    )
