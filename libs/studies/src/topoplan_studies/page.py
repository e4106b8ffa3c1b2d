"""A study as a section of a Markdown page, between markers, so that the rest of the page stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan.errors import TopoplanError
from topoplan_studies.claims import Verdict
from topoplan_studies.notes import mark, notes
from topoplan_studies.prices import Prices
from topoplan_studies.rows import Row
from topoplan_studies.study import BATCH, Study, number
from topoplan_studies.tables import cells_of, cost_of, headers, spread

__all__ = ["premises", "replace_section", "section"]


def replace_section(page: str, name: str, body: str, where: str) -> str:
    """Return a page with the section ``name`` replaced, or appended where it has none.

    Raises:
        TopoplanError: one of the section's two markers is missing.
    """
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if begin not in page and end not in page:
        return f"{page.rstrip()}\n\n{begin}{body}{end}".lstrip()
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise TopoplanError(f"{where}: needs {begin.strip()} before {end.strip()} (or neither)")
    return f"{head}{begin}{body}{end}{tail}"


def section(
    study: Study,
    rows: Sequence[Row],
    judged: Sequence[Verdict],
    prices: Prices,
    *,
    command: str,
    measured: bool,
    picture: str,
) -> str:
    """Return the section of a study.

    Args:
        study, rows, judged, prices: what was compared, and what came of it.
        command: that repeats it.
        measured: operators were priced by measurement files.
        picture: path of the plot, as seen from the page.
    """
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    source = f"Repeats: {study.source}.  " if study.source else ""
    precision = f"  Models are in {study.precision}." if study.precision != "fp32" else ""
    parts = [
        f"## {study.title}\n",
        f"    {command}\n",
        f"{source}Search: {study.budget} candidates for each network, {seeds}; times are medians, extremes in "
        f"brackets where they differ.  {premises(measured, prices)}{precision}\n",
        f"![{study.title}]({picture})\n",
        *(_verdict(verdict) for verdict in judged),
        "### Iteration time\n",
        _times(study, rows) + "\n",
        "### Bandwidth and cost\n",
        _costs(study, rows, prices) + "\n",
        *(f"{note[:1].upper()}{note[1:]}.\n".replace("*", "\\*") for note in notes(rows, prices)),
        *_overfull(rows),
        "<details><summary>All columns</summary>\n",
        _markdown(headers(study, prices), [cells_of(row) for row in rows]) + "\n",
        "</details>\n",
    ]
    return "\n".join(parts)


def premises(measured: bool, prices: Prices) -> str:
    """Say where times of operators and prices of parts come from."""
    priced = "measured on the GPUs of the publication" if measured else "estimated from FLOPs and bytes"
    book = f"{prices.name}, which are assumptions" if prices.assumed() else prices.name
    whole = "; whole parts only" if prices.whole else ""
    return f"Operator times: {priced}.  Prices: {book}{whole}."


def _verdict(verdict: Verdict) -> str:
    """Say in how many places a claim holds; and where it does not, by how much and why."""
    text = f"**{verdict.claim.says}**: {verdict}"
    bound = sum(where.compute_bound for where in verdict.places if where.outcome == "equal")
    if bound:
        text += f" Of the equal places, {bound} are bound by compute on both networks."
    fails = [where for where in verdict.places if where.outcome == "fails"]
    if not fails:
        return text + "\n"
    titles = ["fails at", verdict.claim.faster, verdict.claim.slower, "times as long", "why"]
    table = [
        [
            where.faster.place,
            spread(where.faster.time),
            spread(where.slower.time),
            f"{1 / where.ratio:.2f}",
            "; ".join(where.causes),
        ]
        for where in fails
    ]
    return f"{text}\n\n{_markdown(titles, table)}\n"


def _times(study: Study, rows: Sequence[Row]) -> str:
    """Return medians with a column for each network; behind the first one's, the others' as multiples of it."""
    networks = [network.name for network in study.networks]
    table = []
    for at in _places(rows):
        first, *others = (at[name] for name in networks)
        line = [first.model, *(number(value) for value in first.at.values()), spread(first.time)]
        line += [f"{spread(row.time)}, {row.time.median / first.time.median:.2f}x" for row in others]
        table.append(line)
    return _markdown(["model", *study.vary, *networks], table)


def _costs(study: Study, rows: Sequence[Row], prices: Prices) -> str:
    """Return bandwidth and cost of each network at each variation; neither model nor batch size changes them."""
    networks = [network.name for network in study.networks]
    vary = [key for key in study.vary if key != BATCH]
    seen: dict[tuple[str, ...], list[str]] = {}
    for at in _places(rows):
        key = tuple(number(at[networks[0]].at[name]) for name in vary)
        told = [f"{at[n].links}{mark(at[n])} Gbps, {cost_of(at[n])} {prices.currency}" for n in networks]
        seen.setdefault(key, told)
    return _markdown([*vary, *networks], [[*key, *told] for key, told in seen.items()])


def _overfull(rows: Sequence[Row]) -> list[str]:
    """Name the plans that need more memory than there is."""
    worst: dict[str, Row] = {}
    for row in rows:
        if row.memory > row.capacity and (row.model not in worst or row.memory > worst[row.model].memory):
            worst[row.model] = row
    return [
        f"Memory: {model} needs up to {row.memory / 1e9:.0f} GB on a device of {row.capacity / 1e9:.0f} GB "
        f"({row.network}).\n"
        for model, row in worst.items()
    ]


def _places(rows: Sequence[Row]) -> list[dict[str, Row]]:
    found: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row.model, *row.at.values()), {})[row.network] = row
    return list(found.values())


def _markdown(titles: Sequence[str], table: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|{'|'.join('---' for _ in titles)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in table)])
