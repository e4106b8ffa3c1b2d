"""Profiles that lie in a package: names, sections, rows, and what is said of a name that is not there."""

from __future__ import annotations

import pytest

from topoplan.errors import TopoplanError
from topoplan_engine.published import PublishedProfiles


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    folder = tmp_path / "some_profiles"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "sources.toml").write_text("[small]\nbatch-size = 8\n[large]\nbatch-size = 64\n")
    (folder / "profiles.csv").write_text("profile,operator,ms\nsmall,dense,1.5\nlarge,dense,9\nlarge,relu,2\n")
    monkeypatch.syspath_prepend(tmp_path)
    return PublishedProfiles("some_profiles", "estimator some")


def test_a_profile_has_a_section_and_rows(profiles):
    assert profiles.names() == ["small", "large"]
    assert profiles.source("large") == {"batch-size": 64}
    assert [row["operator"] for row in profiles.rows("large")] == ["dense", "relu"]


def test_a_name_that_is_not_there_is_told_with_the_nearest(profiles):
    with pytest.raises(TopoplanError, match=r"^estimator some: profile: no 'smal'.*small"):
        profiles.source("smal")
