"""Small files that would grow without an end are refused in one line, before the work and the memory."""

from __future__ import annotations

import gzip
import io
import json
import time
import zipfile

import numpy as np
import pytest

from topoplan import Cluster, Host, TopologyContext, TopoplanError
from topoplan.errors import shown
from topoplan_engine.files import read_unpacked
from topoplan_network_files import Defaults, read_network
from topoplan_network_files.plain_yaml import read_yaml
from topoplan_studies.problems import best
from topoplan_studies.study import study_from

DEFAULTS = Defaults(bandwidth=1e9, latency=1e-6)


def cpu_seconds(call):
    began = time.process_time()
    call()
    return time.process_time() - began


def nested(depth, width):
    """Return lists within lists, each of one list many times."""
    value = ["x"] * width
    for _ in range(depth):
        value = [value] * width
    return value


def test_a_message_writes_no_list_that_it_would_cut():
    for value in (nested(30, 10), {"a": nested(30, 10)}, (nested(30, 10), {"b": [nested(30, 10)] * 9}), "x" * 10**7):
        assert cpu_seconds(lambda value=value: shown(value)) < 0.5
        assert len(shown(value)) <= 60
    assert shown([[1, "a"], {"b": (2,)}]) == "[[1, 'a'], {'b': (2,)}]"
    endless = []
    endless.append(endless)
    assert shown(endless).startswith("[[[")
    assert shown(list(range(1000)), 20) == "[0, 1, 2 ... 7, ...]"


BOMB = b"".join(
    b"%c: &%c [%s]\n" % (letter, letter, b",".join([b"*%c" % (letter - 1)] * 10 if letter > 97 else [b"x"] * 10))
    for letter in range(97, 123)
)
#: Merge keys (``<<``) write out what aliases name while values are made.
MERGED = b"a: &a {x: 1}\n" + b"".join(
    b"%c: &%c {<<: [%s]}\n" % (letter, letter, b",".join([b"*%c" % (letter - 1)] * 10)) for letter in range(98, 123)
)


@pytest.mark.parametrize("data", [BOMB, BOMB.replace(b"[", b"{? [").replace(b"]", b"] : 1}"), MERGED])
def test_aliases_do_not_write_out_more_than_a_file_has(data):
    with pytest.raises(TopoplanError, match=r"^x.yaml: aliases write out \S+ values of the \d+ in the file"):
        read_yaml(data, "x.yaml")


def test_yaml_that_holds_itself_is_refused_and_aliases_as_people_write_them_are_read():
    for text in (b"&a [*a]", b"a: &b\n  c: {d: *b}"):
        with pytest.raises(TopoplanError, match=r"^x.yaml: line 1: holds itself"):
            read_yaml(text, "x.yaml")
    text = b"a: &l {speed: 1}\nb: [*l, *l, {<<: *l, time: 2}]"
    assert read_yaml(text, "x.yaml")["b"] == [{"speed": 1}, {"speed": 1}, {"speed": 1, "time": 2}]
    assert read_yaml(b"", "x.yaml") is None
    assert len(read_yaml(b"- a\n" * 10_000, "x.yaml")) == 10_000


def test_devices_within_devices_are_looked_at_once():
    levels, width = 25, 6
    devices = [
        {
            "name": f"d{level}_{number}",
            "components": [{"name": f"d{level + 1}_{k}", "choice": "device"} for k in range(width)]
            if level < levels
            else [{"name": "core", "choice": "xpu"}],
        }
        for level in range(levels + 1)
        for number in range(width)
    ]
    document = {
        "name": "x",
        "devices": devices,
        "instances": [{"name": "h", "device": "d0_0"}],
        "links": [],
        "edges": [],
    }
    fabric = read_network(json.dumps(document).encode(), "x.yaml", DEFAULTS)
    assert (fabric.n_hosts, fabric.n_switches) == (1, 0)


def study(**changed):
    document = {"model": [{"use": "alexnet"}], "network": [{"use": "bigswitch"}], **changed}
    return study_from(document, "s", "s.toml")


def test_a_study_of_more_runs_than_anybody_makes_is_refused():
    many = [1 + k / 1000 for k in range(1000)]
    with pytest.raises(TopoplanError, match=r"^s.toml: 3000000 runs \(1000 vary.latency-us x 1000 vary.* x 3 seeds;"):
        study(seeds=[1, 2, 3], vary={"latency-us": many, "interface-bandwidth-gbps": many})
    with pytest.raises(TopoplanError, match=r"^s.toml: 400000 runs \(1000 vary.* x 400 networks;"):
        study(network=[{"use": "bigswitch", "name": str(k)} for k in range(400)], vary={"latency-us": many})
    with pytest.raises(TopoplanError, match=r"^s.toml: \d+ runs \(\d+ problems x 30000 seeds"):
        study_from({"problems": ["standard"], "seeds": ["1..10000", "10001..20000", "20001..30000"]}, "s", "s.toml")
    assert len(study(seeds=["1..1000"]).seeds) == 1000


def test_names_of_a_large_study_are_compared_once():
    names = [{"use": "bigswitch", "name": f"n{k}"} for k in range(50_000)]
    claims = [{"faster": "n1", "slower": "n2"}] * 20_000
    assert cpu_seconds(lambda: study(network=names, claim=claims)) < 5


def test_a_packed_plan_is_not_larger_than_plans_are(tmp_path):
    path = tmp_path / "p.json.gz"
    path.write_bytes(gzip.compress(bytes(9_000)))
    assert read_unpacked(path, 10_000) == bytes(9_000)
    path.write_bytes(gzip.compress(bytes(10_001)))
    with pytest.raises(TopoplanError, match=r"p.json.gz: more than 10000 bytes are packed in \d+$"):
        read_unpacked(path, 10_000)
    for damaged in (b"", b"no gzip", gzip.compress(b"x" * 99)[:-9], gzip.compress(b"x" * 99)[:15] + b"\xff" * 30):
        path.write_bytes(damaged)
        with pytest.raises(TopoplanError, match=r"p.json.gz: is nothing that gzip packed"):
            read_unpacked(path, 10_000)


def archive(text, method):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as file:
        file.writestr("x/models/model.json", text)
    return content.getvalue()


def test_a_packed_graph_is_not_larger_than_graphs_are(tmp_path, monkeypatch):
    from topoplan_frontend_torch import archive as reading

    monkeypatch.setattr(reading, "_UNPACKED", 100_000)
    path = tmp_path / "m.pt2"
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        path.write_bytes(archive("[" + "[]," * 200_000 + "[]]", method))
        with pytest.raises(TopoplanError, match=r"m.pt2: x/models/model.json: 600004 bytes of \d+ packed ones"):
            reading.read_archive(path, None)
    path.write_bytes(archive("[" + "[]," * 200_000 + "[]]", zipfile.ZIP_STORED))
    with pytest.raises(TopoplanError, match="is no table"):  # as large as it looks, so that it is read
        reading.read_archive(path, None)


def test_graphml_declares_no_document_type_in_any_encoding():
    text = '<?xml version="1.0" encoding="{0}"?><!DOCTYPE x [<!ENTITY a "b">]><graphml><graph/></graphml>'
    for encoding in ("utf-8", "utf-16", "utf-16-le", "latin-1", "ascii"):
        mark = b"\xff\xfe" if encoding == "utf-16-le" else b""
        data = mark + text.format(encoding.replace("-le", "")).encode(encoding)
        with pytest.raises(TopoplanError, match=r"^x.graphml: declares a document type"):
            read_network(data, "x.graphml", DEFAULTS)


HEADER = "problem,seconds,bound,searchers,seed,evaluations,version\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,nan,1,mcmc,0,1,0", "seconds: nan (expected more than 0, and finite)"),
        ("a,inf,1,mcmc,0,1,0", "seconds: inf (expected more than 0, and finite)"),
        ("a,-1,1,mcmc,0,1,0", "seconds: -1.0 (expected more than 0, and finite)"),
        ("a,1,0,mcmc,0,1,0", "bound: 0.0 (expected more than 0, and finite)"),
        ("a,1,x,mcmc,0,1,0", "bound: 'x' is no number in digits"),
        ("a,1,2,mcmc,0,1,0", "seconds: 1.0 is below the bound 2.0, which no plan is"),
        ("a,2,1,mcmc,-1,1,0", "seed: -1 (expected 0 to 9223372036854775807)"),
        ("a,2,1,mcmc,0,1e3,0", "evaluations: '1e3' is no number in digits"),
        ("a,2,1,mcmc,0", "evaluations: nothing is there"),
        (",2,1,mcmc,0,1,0", "problem: nothing is there"),
        ("a,2,1,mcmc,0,1,0,9", "or more than headers say"),
        ("a,2,1,mcmc,0,1,0\na,2,1,mcmc,0,1,0", "problem: 'a' stands there twice"),
        ("a,2,1\rx,mcmc,0,1,0", ""),
        ('a,2,1,"mcmc,0,1,0', "is no line of a table with commas (unexpected end of data)"),
    ],
)
def test_a_table_of_best_plans_names_line_and_field(tmp_path, row, message):
    (tmp_path / "best.csv").write_text(HEADER + row, encoding="utf-8")
    with pytest.raises(TopoplanError, match=r"best.csv: line \d: ") as error:
        best.best_known(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_table_of_the_standard_set_is_read():
    assert all(row.seconds >= row.bound for row in best.best_known().values())
    assert Host.discover()


@pytest.mark.parametrize("claim", [1, "a", [1], [{"faster": "a"}], None, 1.5, True])
def test_a_claim_that_is_no_table_is_named(claim):
    with pytest.raises(TopoplanError, match=r"^s.toml: claim\[0\]: .*expected \[\[claim\]\] with faster"):
        study(claim=[claim])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("jellyfish", {"switches": 65536, "links": 1000}, "switches 65536 with links 1000 are 32768000 links"),
        ("jellyfish", {"switches": 4096, "links": 3100}, "are 6348800 links"),
        ("hyperx", {"sides": (300, 300)}, "sides 300-300 are 26910000 links"),
        ("slim-fly", {"q": 211}, "q 211 are 14113157 links"),
        ("dragonfly", {"groups": 65536, "routers": 1024, "hosts": 1, "links": 64}, "are 36473634816 links"),
        ("bcube", {"ports": 4096, "levels": 16}, "ports=4096 and levels=16 are more than 1048576 switches"),
        ("fully-connected", {}, "131072 hosts are 8589869056 links"),
    ],
)
def test_networks_of_very_many_links_are_refused_before_they_are_drawn(name, options, message):
    """Links by hand: switches x ports / 2; of Slim Fly q^2 (3 q + 1) / 2; of a dragonfly within and between groups."""
    count = 131072 if name == "fully-connected" else 4
    context = TopologyContext(
        cluster=Cluster.uniform(n_hosts=count, interfaces=4), demand=None, rng=np.random.default_rng(0)
    )
    topology = Host.discover().make("topology", name, options)
    began = time.process_time()
    with pytest.raises(TopoplanError, match=message):
        topology.build(context)
    assert time.process_time() - began < 1
