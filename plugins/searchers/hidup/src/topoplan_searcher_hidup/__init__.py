"""HiDup's search as a searcher that constructs its answer: options and registration.

`topoplan_spmd_planning` writes the model down as one program, prices it and searches; `search` turns the plan into a
candidate and a report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

from topoplan import Searcher, hookimpl, option

if TYPE_CHECKING:
    from topoplan import Search

__all__ = ["HIDUP", "HidupOptions", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class HidupOptions:
    """What the search may use; the defaults are HiDup's."""

    signatures: Literal["released", "derived"] = option(
        "released", help="released: those that HiDup knows, wrong ones included; derived: all that are sound"
    )
    max_states: int = option(4_000_000, help="refuse models that need more states than this at a time", minimum=1)


def _build(options: HidupOptions, problem: Any, rng: Any) -> Search:
    from topoplan_searcher_hidup.search import HidupSearch

    return HidupSearch(options, problem)


HIDUP = Searcher(
    name="hidup",
    summary="HiDup: one SPMD program, its collectives hidden behind a second copy of the model",
    options=HidupOptions,
    build=_build,
    axis="strategy",
    whole_batch=True,
    constructs=True,
)


@hookimpl
def topoplan_searchers() -> list[Searcher]:
    """Register the searcher."""
    return [HIDUP]
