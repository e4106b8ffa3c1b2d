"""A replay says how far its times are from those of packets, where the simulator knows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from topoplan.cli import main
from topoplan_samples.fabrics import star
from topoplan_simulator_fluid.observed import comparisons, observed


def simulate(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.fixture
def file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(
            ["optimize", "alexnet", "--batch-size", "64", "--servers", "2", "--budget", "0", "-x", "flatbuffer=a.fbuf"]
        )
    assert not ended.value.code
    capsys.readouterr()
    return "a.fbuf"


def test_fluid_states_its_error(file, capsys):
    assert "typical error" in simulate(capsys, file)
    as_program, wire = (
        json.loads(simulate(capsys, file, *options, "--json"))["typical_error"]
        for options in ((), ("--simulator", "fluid:transport=wire"))
    )
    assert "on one switch, 8 to 16 hosts; none of 2 hosts" in as_program
    assert wire.startswith("by hand: exact")


def test_what_is_said_is_of_the_kind_of_network():
    """Median and largest error are those of the rows of the kind, level and transport, and of no others."""
    fabric = star(8)
    of_kind = [one for one in comparisons() if one.network == "one switch"]
    errors = np.abs([one.errors["flexnetpacket", "stepped"] for one in of_kind])
    said = observed(fabric, "stepped", "flexnetpacket")
    assert f"median {np.median(errors):.2g} %, largest {errors.max():.2g} %, of {len(of_kind)} task graphs" in said
    assert len(of_kind) < len(comparisons())


def test_a_simulator_that_was_not_compared_says_nothing(file, capsys):
    assert "typical error" not in simulate(capsys, file, "--simulator", "flexnet")
    assert json.loads(simulate(capsys, file, "--simulator", "flexnet", "--json"))["typical_error"] is None


def test_a_file_whose_messages_draw_paths_says_what_other_draws_take(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "optimize moe --batch-size 64 -t random --servers 8 --degree 3 -s mcmc --budget 0 -x flatbuffer=a.fbuf"
    with pytest.raises(SystemExit):
        main([*words.split(), "--json"])
    as_run = json.loads(capsys.readouterr().out)["as_run"]["flatbuffer"]
    replayed = json.loads(simulate(capsys, "a.fbuf", "--json"))
    assert replayed["draws"]["mean_iteration_time_s"] == pytest.approx(as_run["iteration_time_s"])
    assert replayed["draws"]["standard_deviation_s"] == pytest.approx(as_run["standard_deviation_s"])
    assert "draws of equal paths; " in simulate(capsys, "a.fbuf")


def test_a_file_whose_messages_draw_nothing_says_nothing_of_draws(file, capsys):
    assert json.loads(simulate(capsys, file, "--json"))["draws"] is None
    assert "draw" not in simulate(capsys, file)
