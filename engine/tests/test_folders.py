"""Folders of files: written whole or not at all, and nothing of anybody else is lost."""

import io
import subprocess
import tarfile

import pytest

from topoplan import Host, TopoplanError
from topoplan_engine.exporting import read_plan
from topoplan_engine.folders import archive_of, check_writable_folder, files_of, is_folder, read_folder, write_folder

FILES = {"b.0.et": b"two", "a.json": b"", "b.1.et": b"x" * 5000}


def test_files_survive():
    assert files_of(archive_of(FILES), "x") == FILES
    assert archive_of(FILES) == archive_of(dict(FILES))


def test_a_folder_is_read_as_it_was_written(tmp_path):
    write_folder(tmp_path / "out", archive_of(FILES))
    (tmp_path / "out" / ".hidden").write_bytes(b"")
    assert files_of(read_folder(tmp_path / "out"), "x") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_of_the_same_kind_is_replaced_whole(tmp_path):
    write_folder(tmp_path / "out", archive_of({**FILES, "b.17.et": b"old"}))
    write_folder(tmp_path / "out", archive_of(FILES))
    assert files_of(read_folder(tmp_path / "out"), "x") == FILES


@pytest.mark.parametrize("name", ["mine.txt", "b.et", "a.0.json"])
def test_a_folder_with_other_files_is_left_alone(tmp_path, name):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"mine")
    with pytest.raises(TopoplanError, match=rf"^{tmp_path}/out: holds '{name}', which no export wrote"):
        write_folder(tmp_path / "out", archive_of(FILES))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_places_where_no_folder_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place, why in (
        (tmp_path / "file", "is no folder"),
        (tmp_path / "absent" / "out", "does not exist"),
        (tmp_path / "..", "names no folder of its own"),
    ):
        with pytest.raises(TopoplanError, match=why):
            check_writable_folder(place)
    check_writable_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_archive_is_one_by_its_name(tmp_path):
    assert is_folder(".et.tar", tmp_path / "out")
    assert not is_folder(".et.tar", tmp_path / "out.et.tar")
    assert not is_folder(".fbuf", tmp_path / "out")


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:700], lambda d: d[:300] + b"z" + d[301:], lambda d: d[512:]]
)
def test_damaged_archives(damage):
    with pytest.raises(TopoplanError, match=r"^x: "):
        files_of(damage(archive_of({"b.1.et": b"x" * 5000})), "x")


@pytest.mark.parametrize("name", ["../up", "a/../../up", "..", "/root", "/a/root", "."])
def test_names_that_lead_elsewhere(name):
    with pytest.raises(TopoplanError, match="is no plain file"):
        files_of(archive_of({name: b""}), "x")


def packed(tmp_path, *arguments):
    """What the program tar packs of a folder ``traces`` with two files and a folder."""
    (tmp_path / "traces").mkdir()
    for name in ("t.0.et", "t.1.et"):
        (tmp_path / "traces" / name).write_bytes(name.encode())
    subprocess.run(["tar", "cf", "packed.tar", *arguments], cwd=tmp_path, check=True)
    return (tmp_path / "packed.tar").read_bytes()


@pytest.mark.parametrize(
    "arguments", [("-C", "traces", "."), ("traces",), ("./traces",), ("-C", "traces", "t.0.et", "t.1.et")]
)
def test_a_folder_that_tar_has_packed_is_read(tmp_path, arguments):
    assert files_of(packed(tmp_path, *arguments), "x") == {"t.0.et": b"t.0.et", "t.1.et": b"t.1.et"}


def test_files_of_several_folders_are_refused():
    with pytest.raises(TopoplanError, match=r"'b/t\.1\.et' is no plain file of its own"):
        files_of(archive_of({"a/t.0.et": b"", "b/t.1.et": b""}), "x")


def test_one_of_several_files_names_their_folder(tmp_path):
    (tmp_path / "t.0.et").write_bytes(b"")
    with pytest.raises(TopoplanError, match=r"t\.0\.et: is one of several files \(give their folder, "):
        read_plan(Host.discover(), tmp_path / "t.0.et")


def test_links_are_refused():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(TopoplanError, match="is no plain file"):
        files_of(content.getvalue(), "x")
