"""Read the plans of all files of a checkout of Megatron-LM or torchtitan, and count what is read and what is refused.

    python benchmarks/trainer_files.py FOLDER

A file counts if it has a flag or a key of a parallel degree: scripts and YAML files with flags of Megatron-LM,
torchtitan's TOML.  Each is read (`topoplan_trainer_plans.settings`), or refused by a line that names the setting; other
errors end the command.  Last is a table of reasons, with one file each.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from topoplan import TopoplanError
from topoplan_engine.reporting.tables import markdown_table
from topoplan_trainer_plans.settings import trainer_settings

__all__ = ["counted"]

_DEGREE = re.compile(r"--(tensor|pipeline|expert)-model-parallel-size|--context-parallel-size|parallel\w*_degree\s*=")


def counted(folder: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the files that are read, each with its plan in words, and those that are refused, each with the reason."""
    read, refused = [], []
    for path, text in _files(folder):
        name = str(path.relative_to(folder))
        try:
            read.append((name, trainer_settings(text, path.name).text))
        except TopoplanError as error:
            refused.append((name, str(error).removeprefix(f"{path.name}: ")))
    return read, refused


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".sh", ".yaml", ".yml", ".toml", ".txt") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if _DEGREE.search(text):
                yield path, text


def main() -> None:
    """Print each file with its plan or the reason, the counts, and a table of reasons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a checkout of Megatron-LM or torchtitan")
    folder = parser.parse_args().folder
    if not folder.is_dir():
        parser.error(f"{folder}: is no folder")
    read, refused = counted(folder)
    for name, words in [*read, *((name, f"refused: {why}") for name, why in refused)]:
        print(f"{name}: {words}")
    print(f"\n{len(read)} of {len(read) + len(refused)} files are read, {len(refused)} are refused by name\n")
    reasons = Counter(_kind(why) for _, why in refused)
    example = {_kind(why): name for name, why in reversed(refused)}
    rows = [(str(count), reason, example[reason]) for reason, count in reasons.most_common()]
    print(markdown_table(["files", "reason", "the first"], rows, ["files"]))


def _kind(why: str) -> str:
    """Return a reason without what differs from file to file."""
    return re.sub(r"'[^']*'|\d+", "…", why.partition("(")[0]).strip()


if __name__ == "__main__":
    main()
