"""Files at the edge: links are followed, what is no regular file is refused, and nothing is half-written."""

from __future__ import annotations

import os

import pytest

from topoplan import TopoplanError
from topoplan_engine.files import check_different, check_writable, read_file, read_text, write_file


def test_a_symbolic_link_stays_one_and_its_target_is_written(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_file(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    (tmp_path / "dangling").symlink_to(tmp_path / "made")
    write_file(tmp_path / "dangling", b"new")
    assert (tmp_path / "made").read_bytes() == b"new"


def test_what_is_no_regular_file_is_neither_read_nor_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path / "link-to-pipe"):
        if path != pipe:
            path.symlink_to(pipe)
        with pytest.raises(TopoplanError, match="no regular file"):
            read_file(path)
        with pytest.raises(TopoplanError, match="no regular file"):
            check_writable(path)
        with pytest.raises(TopoplanError, match="no regular file"):
            write_file(path, b"x")
    assert pipe.is_fifo()
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(TopoplanError, match="no regular file"):
        read_file(tmp_path / "zero")


@pytest.mark.parametrize("name", ["x" * 300, "nul\0nul", "no/such/folder"])
def test_a_place_that_cannot_be_written_is_told_before_and_after(tmp_path, name):
    for attempt in (check_writable, lambda path: write_file(path, b"x")):
        with pytest.raises(TopoplanError) as error:
            attempt(tmp_path / name)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 1000
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder where no file can be made")  # noqa: PTH112
def test_a_folder_where_no_file_can_be_made_is_told_before(tmp_path):
    from pathlib import Path

    with pytest.raises(TopoplanError, match="cannot be written"):
        check_writable(Path("/proc/topoplan.json"))


def test_a_name_of_the_greatest_length_can_be_written(tmp_path):
    longest = tmp_path / ("x" * 255)
    check_writable(longest)
    write_file(longest, b"x")
    assert longest.read_bytes() == b"x"
    assert len(list(tmp_path.iterdir())) == 1


def test_two_outputs_do_not_share_a_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a")
    check_different([("-x json", tmp_path / "a"), ("-x dot", tmp_path / "b")])
    with pytest.raises(TopoplanError, match="-x json and -x dot both write to it"):
        check_different([("-x json", tmp_path / "a"), ("-x dot", tmp_path / "link")])


def test_text_that_is_none_is_told_with_its_place(tmp_path):
    (tmp_path / "page.md").write_bytes(b"ab\xff")
    with pytest.raises(TopoplanError, match="byte 2 is not UTF-8"):
        read_text(tmp_path / "page.md", "a page")
