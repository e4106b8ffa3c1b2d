"""The command line where its streams are closed or full, and where the user stops it before it has begun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from topoplan import __main__ as start
from topoplan.cli import main


def status(run, *given):
    with pytest.raises(SystemExit) as error:
        run(*given)
    return error.value.code


def test_a_closed_standard_output_is_no_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert status(main, ["plugins"]) in (0, None)
    sys.stdout.close()
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [["plugins"], ["--help"], ["--version"], ["plugins", "--help"]])
def test_a_full_standard_output_is_one_line(monkeypatch, capsys, words):
    with open(os.devnull, "w") as silent:  # noqa: PTH123
        stream = Path("/dev/full").open("w")  # noqa: SIM115
        monkeypatch.setattr(sys, "stdout", stream)
        assert status(main, words) == 2
        os.dup2(silent.fileno(), stream.fileno())
        stream.close()
    assert "error: standard output cannot be written (No space left on device)" in capsys.readouterr().err


def test_ctrl_c_before_anything_runs_is_no_traceback(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("topoplan.cli.main", interrupted)
    assert status(start.main) == 130


def test_ctrl_c_where_nothing_is_kept_ends_as_shells_expect(monkeypatch, capsys):
    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("topoplan.plugin.host.Host.discover", interrupted)
    assert status(main, ["plugins"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("words", [["plugins", "show", "nothing-of-this-name"], ["--help"]])
def test_a_full_standard_error_changes_no_status(words):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "topoplan", *words]
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 2


@pytest.mark.parametrize(
    "code",
    [
        "import atexit\natexit.register(print, 'bye')\n",
        "import sys, threading\nthreading.Thread(target=lambda: [print('tick') for _ in range(2000)]).start()\n",
    ],
    ids=["at the end", "in a thread"],
)
def test_what_a_plugin_prints_later_is_no_part_of_the_json(tmp_path, code):
    tmp_path.joinpath("loud.py").write_text(code)
    about = tmp_path / "loud-1.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1\n")
    about.joinpath("entry_points.txt").write_text("[topoplan]\nloud = loud\n")
    words = [sys.executable, "-m", "topoplan", "plugins", "--json"]
    shown = subprocess.run(words, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert isinstance(json.loads(shown.stdout), list | dict)
    assert shown.stderr.split()[-1] in (b"bye", b"tick")
