"""Folders of files: written whole or not at all, and nothing of anybody else is lost."""

import io
import tarfile

import pytest

from topoplan import TopoplanError
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


@pytest.mark.parametrize("name", ["../up", "a/b", "/root", "."])
def test_names_that_lead_elsewhere(name):
    with pytest.raises(TopoplanError, match="is no plain file"):
        files_of(archive_of({name: b""}), "x")


def test_links_are_refused():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(TopoplanError, match="is no plain file"):
        files_of(content.getvalue(), "x")
