"""``topoplan problems --improve``: what is better is stored, and it is said where nothing is."""

from __future__ import annotations

import pytest

from topoplan.cli import main


def test_where_nothing_is_better_nothing_is_stored_and_it_is_said(tmp_path, capsys):
    words = ["problems", "alexnet-switch", "--improve", "random", "--budget", "2", "--folder", str(tmp_path / "best")]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(words)
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == f"nothing was better than what is known: {tmp_path / 'best'} is as it was"
    assert "alexnet-switch" in said.out
    assert not (tmp_path / "best").exists()
