"""The code of classes is kept between processes, and methods do the same with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A module of the project with a class; who imports it says what the class does, and whether something was compiled.
MODULE = """
import attrs

@attrs.frozen(cache_hash=True)
class Pair:
    first: int
    second: str = attrs.field(default="x", converter=str)

@attrs.frozen(cache_hash=True)
class Other:
    first: int
    second: str = attrs.field(default="x", converter=str)
"""
PROGRAM = """
import builtins, sys
from topoplan_engine import class_code
class_code._file = lambda: class_code.Path(sys.argv[1])
class_code.keep_class_code()
compiled, compile = [], builtins.compile
def counted(source, filename, mode, *rest, **options):
    compiled.extend([filename] * ("attrs generated" in str(filename)))
    return compile(source, filename, mode, *rest, **options)
builtins.compile = counted
from topoplan_kept_pair import Other, Pair
builtins.compile = compile
print(Pair(1, 2), Pair(1) == Pair(1), len({Pair(1), Pair(1), Other(1)}), Pair(1) == Other(1))
print(len(compiled))
"""


def run(folder: Path, **environment: str) -> list[str]:
    folder.joinpath("topoplan_kept_pair.py").write_text(MODULE)
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    words = [sys.executable, "-c", PROGRAM, str(folder / "classes.pyc")]
    said = subprocess.run(
        words, check=True, capture_output=True, text=True, env={**kept, "PYTHONPATH": str(folder), **environment}
    )
    return said.stdout.splitlines()


def test_the_second_process_compiles_no_class_and_its_classes_are_the_same(tmp_path):
    first, second = run(tmp_path, PYTHONHASHSEED="1"), run(tmp_path, PYTHONHASHSEED="2")
    assert first[0] == second[0] == "Pair(first=1, second='2') True 2 False"
    assert int(first[1]) > 0
    assert second[1] == "0"


@pytest.mark.parametrize("content", [b"", b"no code", b"cafe\n\nmore"])
def test_a_file_that_is_none_is_written_anew(tmp_path, content):
    file = tmp_path / "classes.pyc"
    file.write_bytes(content)
    assert run(tmp_path)[0] == "Pair(first=1, second='2') True 2 False"
    assert run(tmp_path)[1] == "0"


def test_a_cut_file_is_written_anew(tmp_path):
    run(tmp_path)
    file = tmp_path / "classes.pyc"
    file.write_bytes(file.read_bytes()[:200])
    assert run(tmp_path)[0] == "Pair(first=1, second='2') True 2 False"
    assert run(tmp_path)[1] == "0"


def test_nothing_is_written_where_python_writes_no_code(tmp_path):
    assert int(run(tmp_path, PYTHONDONTWRITEBYTECODE="1")[1]) > 0
    assert not tmp_path.joinpath("classes.pyc").exists()
