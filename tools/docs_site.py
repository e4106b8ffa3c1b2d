"""Gathers the pages of the documentation site, from which Zensical or MkDocs builds it.

``python tools/docs_site.py`` writes ``build/site/pages``: README.md as the first page, docs/, the other documents of
the root, and a page for each installed component, made from its class and the README of its package.  Links between
files of the checkout become links between pages; a file that is no page is copied beside them.
``build/site/mkdocs.yml`` is the mkdocs.yml of the root with these pages in its navigation, so that ::

    python tools/docs_site.py && zensical build --strict -f build/site/mkdocs.yml

builds ``build/site/html``, and ``mkdocs build --strict`` with Material does, too.  A link that leads nowhere ends it
with status 1.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from topoplan import Host
from topoplan.options import OptionInfo, describe
from topoplan.plugin.components import Component, Kind, Registered

ROOT = Path(__file__).resolve().parents[1]
SITE = Path("build/site")
#: Documents of the root that are pages, and what they are called there.
DOCUMENTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
#: The line of mkdocs.yml below which the pages of components go.
COMPONENTS = "  - Components:"
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")


@dataclass(frozen=True)
class Page:
    """A page of the site: where it lies there, the file that its links start from, and its text."""

    target: str
    source: str
    text: str


class DeadLinkError(Exception):
    """A link of a page leads nowhere."""


def pages(root: Path, host: Host) -> list[Page]:
    """Return all pages, with links as they are in the checkout."""
    files = {source: target for source, target in DOCUMENTS.items() if (root / source).is_file()}
    files |= {path: path.removeprefix("docs/") for path in _files(root, "docs/**/*.md")}
    files |= {path: f"libraries/{Path(path).parent.name}.md" for path in _files(root, "libs/*/README.md")}
    texts = [Page(target, source, (root / source).read_text(encoding="utf-8")) for source, target in files.items()]
    return [*texts, *component_pages(root, host)]


def component_pages(root: Path, host: Host) -> Iterator[Page]:
    """Give a page for each kind with a table of its components, and one for each component."""
    listing = host.listing()
    for kind in Kind:
        rows = [row for row in listing if row.kind == kind.value]
        lines = [
            f"# {plural(kind).capitalize()}",
            "",
            f"[How to write one](../../plugins/{kind.value}.md). Installed here:",
            "",
            "| name | what it is | package |",
            "|---|---|---|",
            *(f"| [`{row.name}`]({row.name}.md) | {_cell(row.summary)} | `{row.distribution}` |" for row in rows),
        ]
        yield Page(f"components/{plural(kind)}/index.md", f"docs/components/{plural(kind)}/index.md", _joined(lines))
        for row in rows:
            readme = readme_of(root, row.distribution)
            text = component_text(host.get(row.kind, row.name), row.distribution, root / readme)
            yield Page(f"components/{plural(kind)}/{row.name}.md", readme, text)


def component_text(cls: type[Registered], distribution: str, readme: Path) -> str:
    """Return the page of a component: its summary, its options, and the text of its package's README."""
    lines = [f"# {cls.name}", "", f"{cls.summary}.", "", f"A {cls.kind.value} of the package `{distribution}`.", ""]
    if issubclass(cls, Component):
        lines += [*_option_lines(describe(cls)), ""]
    else:
        lines += [f"`topoplan {cls.name} --help` shows its options.", ""]
    body = readme.read_text(encoding="utf-8").partition("\n")[2].strip() if readme.is_file() else ""
    return _joined([*lines, *(["## Description", "", body] if body else [])])


def _option_lines(options: list[OptionInfo]) -> list[str]:
    if not options:
        return ["It has no options."]
    rows = [
        (
            f"`{option.key}`",
            f"{option.type} [{option.unit}]" if option.unit else option.type,
            f"`{option.default}`" if option.default else "",
            f"{option.help} ({option.range})" if option.range else option.help,
        )
        for option in options
    ]
    return [
        "| option | type | default | meaning |",
        "|---|---|---|---|",
        *(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows),
    ]


def readme_of(root: Path, distribution: str) -> str:
    """Return the README of a distribution of the checkout, or where it would be."""
    kind, _, name = distribution.removeprefix("topoplan-").partition("-")
    folder = f"plugins/{kind.removesuffix('y')}{'ies' if kind.endswith('y') else 's'}/{name}"
    return f"{folder}/README.md" if (root / folder).is_dir() else "README.md"


def plural(kind: Kind) -> str:
    """Return the name of several components of a kind."""
    return re.sub("y$", "ie", kind.value) + "s"


def linked(page: Page, targets: dict[str, str], root: Path, copies: dict[str, str]) -> str:
    """Return the text of a page with links that hold on the site, and note the files that they need in ``copies``.

    Raises:
        DeadLinkError: one leads to nothing.
    """

    def replaced(link: re.Match[str]) -> str:
        path = os.path.normpath(Path(page.source).parent / link[1])
        if page.target.startswith("components/") and link[1].endswith(".md") and path not in targets:
            path = os.path.normpath(Path("docs") / Path(page.target).parent / link[1])
        if (root / path / "README.md").is_file():
            path = f"{path}/README.md"
        if path not in targets and (root / path).is_file():
            copies[path] = targets[path] = f"files/{path}{'.txt' if path.endswith('.md') else ''}"
        if path in targets:
            return os.path.relpath(targets[path], Path(page.target).parent) + link[2]
        if (root / path).is_dir() and any((root / path).iterdir()):
            return os.path.relpath("architecture.md", Path(page.target).parent) + "#packages"
        raise DeadLinkError(f"{page.source}: the link {link[1]!r} leads nowhere")

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", page.text, flags=re.M | re.S)  # every second one is code
    return "".join(part if index % 2 else _LINK.sub(replaced, part) for index, part in enumerate(parts))


def write(root: Path, folder: Path, host: Host) -> int:
    """Write pages, the files that they link to, and the configuration into a folder; return the number of pages.

    Raises:
        DeadLinkError: a link of a page leads nowhere.
    """
    shutil.rmtree(folder, ignore_errors=True)
    all_pages = pages(root, host)
    targets: dict[str, str] = {}
    for page in all_pages:  # a package of several components: its README is the page of the first
        targets.setdefault(page.source, page.target)
    targets |= {f"docs/{page.target}": page.target for page in all_pages if page.target.startswith("components/")}
    copies: dict[str, str] = {}
    for page in all_pages:
        path = folder / "pages" / page.target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(linked(page, targets, root, copies), encoding="utf-8")
    for source, target in copies.items():
        (folder / "pages" / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / source, folder / "pages" / target)
    config = configuration((root / "mkdocs.yml").read_text(encoding="utf-8"), all_pages)
    (folder / "mkdocs.yml").write_text(config, encoding="utf-8")
    return len(all_pages)


def configuration(text: str, all_pages: list[Page]) -> str:
    """Return mkdocs.yml with the pages of components in its navigation, and folders as seen from ``build/site``."""
    lines = [COMPONENTS]
    for kind in Kind:
        lines += [f"      - {plural(kind).capitalize()}:"]
        here = [page.target for page in all_pages if page.target.startswith(f"components/{plural(kind)}/")]
        lines += [f"          - {target}" for target in here]
    head, found, tail = text.partition(f"{COMPONENTS}\n")
    if not found:
        raise SystemExit(f"mkdocs.yml: the navigation has no line {COMPONENTS!r}")
    _, _, rest = tail.partition("\n  - ")
    whole = f"{head}{_joined(lines)}  - {rest}" if rest else head + _joined(lines)
    return whole.replace(f"{SITE}/", "")


def _files(root: Path, pattern: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        count = write(ROOT, ROOT / SITE, Host.discover())
    except DeadLinkError as error:
        sys.exit(str(error))
    print(f"{count} pages in {SITE}/pages")
