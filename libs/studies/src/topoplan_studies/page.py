"""What came of a study as a section of a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from topoplan.errors import printable
from topoplan_engine.fitting import size_text
from topoplan_engine.reporting.tables import markdown_table, markdown_text
from topoplan_studies.beside import breakdown_beside, order_sentence, times_beside
from topoplan_studies.hypotheses import HypothesisTest
from topoplan_studies.notes import mark, notes
from topoplan_studies.prices import Prices
from topoplan_studies.results import NetworkResult, by_setting
from topoplan_studies.study import BATCH, Study, number
from topoplan_studies.tables import StudyReport, cost_of, spread, study_table

__all__ = ["premises", "section"]


def section(report: StudyReport, command: str, picture: str) -> str:
    """Return the section.

    Args:
        report: what came of the study.
        command: that repeats it.
        picture: path of the plot, as seen from the page.
    """
    study = report.study
    seeds = f"{len(study.seeds)} seeds" if len(study.seeds) > 1 else "one seed"
    title = markdown_text(study.title)
    source = f"Repeats: {markdown_text(study.source)}.  " if study.source else ""
    precision = f"  Models are in {study.run.precision}." if study.run.precision not in (None, "fp32") else ""
    parts = [
        f"## {title}\n",
        f"    {printable(command)}\n",
        f"{source}{_search(study)}, {seeds}; times are medians, extremes in "
        f"brackets where they differ.  {premises(report.measured, report.prices)}{precision}\n",
        f"![{title}]({quote(picture)})\n",
        *map(_hypothesis, report.tests),
        *_main_tables(report),
        *(
            f"{note[:1].upper()}{note[1:]}.\n".replace("*", "\\*")
            for note in map(markdown_text, notes(report.results, report.prices))
        ),
        *_over_memory(report.results),
        "<details><summary>All columns</summary>\n",
        study_table(report).markdown() + "\n",
        "</details>\n",
    ]
    return "\n".join(parts)


def _search(study: Study) -> str:
    if not study.compares_planners:
        return f"Search: {study.run.budget} candidates for each network"
    return f"Planners: {', '.join(markdown_text(planner.name) for planner in study.planners)}"


def _main_tables(report: StudyReport) -> list[str]:
    """Return the tables of times and of costs; of a study with published values, these beside the times instead."""
    study = report.study
    if study.published:
        times, breakdown = times_beside(study, report.results), breakdown_beside(study, report.results)
        return [
            *(["### Iteration time\n", times + "\n", order_sentence(study, report.results) + "\n"] if times else []),
            *(["### Breakdown\n", breakdown + "\n"] if breakdown else []),
        ]
    return ["### Iteration time\n", _times(report) + "\n", "### Bandwidth and cost\n", _costs(report) + "\n"]


def premises(measured: bool, prices: Prices) -> str:
    """Say where times of operators and prices of parts come from."""
    times = "measured" if measured else "estimated from FLOPs and bytes"
    name = f"{prices.name}, which are assumptions" if prices.assumed() else prices.name
    whole = "; whole parts only" if prices.whole else ""
    return f"Operator times: {times}.  Prices: {name}{whole}."


def _hypothesis(test: HypothesisTest) -> str:
    """Say at how many settings a hypothesis holds; and where it does not, by how much and why."""
    hypothesis = test.hypothesis
    text = f"**{markdown_text(hypothesis.says)}**: {markdown_text(str(test))}"
    bound = sum(comparison.compute_bound for comparison in test.comparisons if comparison.outcome == "equal")
    if bound:
        text += f" Of the equal places, {bound} are bound by compute on both networks."
    rows = [
        [
            markdown_text(comparison.faster.setting),
            spread(comparison.faster.time),
            spread(comparison.slower.time),
            f"{1 / comparison.ratio:.2f}",
            markdown_text("; ".join(comparison.causes)),
        ]
        for comparison in test.comparisons
        if comparison.outcome == "fails"
    ]
    if not rows:
        return text + "\n"
    names = (markdown_text(hypothesis.faster), markdown_text(hypothesis.slower))
    headers = ["fails at", *names, "times as long", "why"]
    return f"{text}\n\n{markdown_table(headers, rows)}\n"


def _times(report: StudyReport) -> str:
    """Return medians with a column for all that is compared; behind the first one's, others' as multiples of it."""
    labels = report.study.labels
    rows = []
    for results in by_setting(report.results):
        first, *later = (results[name] for name in labels)
        cells = [*map(markdown_text, (first.model, *map(number, first.settings.values()))), spread(first.time)]
        cells += [f"{spread(result.time)}, {result.time.median / first.time.median:.2f}x" for result in later]
        rows.append(cells)
    return markdown_table(["model", *report.study.vary, *map(markdown_text, labels)], rows)


def _costs(report: StudyReport) -> str:
    """Return bandwidth and cost of each network at each setting; neither model nor batch size changes them."""
    networks = [network.name for network in report.study.networks]
    vary = [key for key in report.study.vary if key != BATCH]
    rows: dict[tuple[str, ...], list[str]] = {}
    for compared in by_setting(report.results):
        results = {result.network: result for result in compared.values()}
        key = tuple(markdown_text(number(results[networks[0]].settings[name])) for name in vary)
        in_order = [results[name] for name in networks]
        cells = [
            f"{result.links}{mark(result)} Gbps, {cost_of(result)} {report.prices.currency}" for result in in_order
        ]
        rows.setdefault(key, cells)
    return markdown_table([*vary, *map(markdown_text, networks)], [[*key, *cells] for key, cells in rows.items()])


def _over_memory(results: Sequence[NetworkResult]) -> list[str]:
    """Name the plans that need more memory than there is."""
    worst: dict[str, NetworkResult] = {}
    for result in results:
        model = result.model
        if result.memory > result.capacity and (model not in worst or result.memory > worst[model].memory):
            worst[model] = result
    return [
        f"Memory: {markdown_text(model)} needs up to {size_text(result.memory)} where a device has "
        f"{size_text(result.capacity)} for it ({markdown_text(result.network)}).\n"
        for model, result in worst.items()
    ]
