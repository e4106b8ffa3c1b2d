"""A replay says how far its times are from those of packets, where the simulator knows."""

from __future__ import annotations

import json

import pytest

from topoplan.cli import main


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
    assert "against packets" in simulate(capsys, file)
    stepped = json.loads(simulate(capsys, file, "--simulator", "fluid:level=stepped", "--json"))
    coupled = json.loads(simulate(capsys, file, "--json"))
    assert "median error 0.14 %" in stepped["against_packets"]
    assert "median error 0.17 %" in coupled["against_packets"]


def test_a_simulator_that_was_not_compared_says_nothing(file, capsys):
    assert "against packets" not in simulate(capsys, file, "--simulator", "flexnet")
    assert json.loads(simulate(capsys, file, "--simulator", "flexnet", "--json"))["against_packets"] is None
