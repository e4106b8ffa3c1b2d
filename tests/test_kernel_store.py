"""Compiled kernels are kept for the user, so that another checkout of the same sources copies them."""

from __future__ import annotations

import csv
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"
TAG = sys.implementation.cache_tag


def load(file):
    spec = importlib.util.spec_from_file_location(f"{file.stem}_of_tools", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


store, backend = load(TOOLS / "kernel_store.py"), load(TOOLS / "compiled_kernels/backend.py")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def checkout(folder, **kernels):
    """Make a folder of two packages, the first one with files of kernels."""
    for name in ("first", "second"):
        (folder / name).mkdir(parents=True)
    for name, text in kernels.items():
        (folder / "first/compiled_kernels").mkdir(exist_ok=True)
        (folder / f"first/compiled_kernels/{name}.{TAG}.nbc").write_text(text)
    return folder


def kernels_in(folder):
    return {path.name.partition(".")[0]: path.read_text() for path in folder.glob("*/compiled_kernels/*")}


def test_another_checkout_of_the_same_sources_copies_them(tmp_path):
    entry = store.key("sources")
    assert not store.take(entry, [tmp_path])
    store.keep(entry, [checkout(tmp_path / "one", event="1", load="2")])
    assert store.take(entry, [checkout(tmp_path / "two")])
    assert kernels_in(tmp_path / "two") == {"event": "1", "load": "2"}


def test_other_sources_begin_with_the_last_kernels(tmp_path):
    for number, name in enumerate(("older", "newer")):
        store.keep(store.key(name), [checkout(tmp_path / name, event=name)])
        os.utime(tmp_path / "cache/topoplan/compiled_kernels" / store.key(name), (number, number))
    assert not store.take(store.key("present"), [checkout(tmp_path / "here")])
    assert kernels_in(tmp_path / "here") == {"event": "newer"}


def test_kernels_that_have_moved_are_left_behind(tmp_path):
    """Files of kernels name the line of the function; those of a line before would add up."""
    names = ["first.loop._run-2", "first.loop._run-3", "first.loop._stop-2", "first.other._run-2"]
    store.keep(store.key("before"), [checkout(tmp_path / "before", **dict.fromkeys(names, ""))])
    here = checkout(tmp_path / "here")
    (here / "first/loop.py").write_text("\n@kernel\ndef _run(tasks):\n    pass\n")
    assert not store.take(store.key("present"), [here])
    assert [path.name for path in here.glob("*/compiled_kernels/*")] == [f"first.loop._run-2.{TAG}.nbc"]


def test_what_compiles_is_part_of_the_key(monkeypatch):
    here = store.key("sources")
    assert here == store.key("sources") != store.key("other sources")
    monkeypatch.setattr(store, "version", lambda name: "0.1")
    assert here != store.key("sources")


def test_entries_used_last_are_kept(tmp_path, cache):
    names = [store.key(str(number)) for number in range(store.MOST + 2)]
    for number, name in enumerate(names):
        store.keep(name, [checkout(tmp_path / str(number), event=str(number))])
        os.utime(cache / "topoplan/compiled_kernels" / name, (number, number))
    store.keep(names[-1], [])  # nothing is new, what is too much goes
    assert {path.name for path in (cache / "topoplan/compiled_kernels").iterdir()} == {*names[-store.MOST :]}


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners of files")
def test_a_folder_of_another_user_is_not_read(tmp_path, monkeypatch):
    entry = store.key("sources")
    store.keep(entry, [checkout(tmp_path / "one", event="1")])
    monkeypatch.setattr(store.os, "getuid", lambda: -2)
    assert not store.take(entry, [checkout(tmp_path / "two")])
    assert kernels_in(tmp_path / "two") == {}


def test_without_a_place_nothing_is_kept(tmp_path, cache):
    cache.write_text("a file")
    entry = store.key("sources")
    store.keep(entry, [checkout(tmp_path / "one", event="1")])
    assert not store.take(entry, [checkout(tmp_path / "two")])


def test_what_uv_builds_compiles_kernels_and_has_no_files(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: asked.append(words[1:]))
    with zipfile.ZipFile(tmp_path / backend.build_editable(str(tmp_path))) as wheel:
        record = wheel.read("topoplan_compiled_kernels-0.dist-info/RECORD").decode()
        assert {row[0] for row in csv.reader(record.splitlines())} == set(wheel.namelist())
        assert b"Name: topoplan-compiled-kernels" in wheel.read("topoplan_compiled_kernels-0.dist-info/METADATA")
        assert {name.partition("/")[0] for name in wheel.namelist()} == {"topoplan_compiled_kernels-0.dist-info"}
    assert asked == [[str(TOOLS / "kernels.py"), "--few"]]
    assert any(line.startswith("numba") for line in backend.get_requires_for_build_editable())
    with pytest.raises(SystemExit, match="can only be installed editable"):
        backend.build_wheel(str(tmp_path))
