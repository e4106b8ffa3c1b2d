"""What tables and JSON say of a plan's algorithms of collectives and of its wiring, and what each gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topoplan.model.plan import Plan
from topoplan_engine.reporting.printing import spelled_time

__all__ = ["again_text", "algorithm_rows", "joint_json", "joint_rows"]

#: Rows of algorithms that a table has.
_SHOWN = 4
#: A gain that is said, as a share.
_WORTH = 1e-4


def joint_json(plan: Plan) -> dict[str, Any]:
    """Return ``joint`` and ``algorithms`` as the provenance has them; nothing where it has none."""
    record, rows = _record(plan), _named(plan)
    return {**({"joint": dict(record)} if record else {}), **({"algorithms": rows} if rows else {})}


def joint_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a table: which algorithms run collectives, and the wiring, with what each gained."""
    record = _record(plan)
    seconds = record.get("seconds")
    named_text = _listed(_texts(_named(plan)))
    rows = [("collective algorithms", named_text)] if named_text else []
    if not isinstance(seconds, float) or seconds <= 0:
        return rows
    with_rings, on_first = record.get("seconds_with_rings"), record.get("seconds_on_first_wiring")
    if isinstance(with_rings, float):
        uses = _listed(_texts(record.get("algorithms"), with_rings=False))
        rows.append(
            (
                "collective algorithms",
                f"{f'{uses}; ' if uses else ''}{_gain(with_rings, seconds)} than rings of the network",
            )
        )
    if isinstance(on_first, float):
        gain = f"{on_first / seconds:.3f}x over the wiring of the first plan ({spelled_time(on_first)})"
        rows.append(("wiring for this plan", gain))
    elif record.get("wired_anew") is False:
        rows.append(("wiring for this plan", "that of the first plan: no other one is faster"))
    if record.get("layout_moved"):
        rows.append(("layout", "another one than that of the search"))
    return rows


def again_text(plan: Plan) -> str:
    """Return what is to be said behind ``--plan`` for the same times: algorithms, and where the wiring is."""
    record = _record(plan)
    collectives = record.get("collectives")
    rules = collectives.split(";") if isinstance(collectives, str) and collectives else []
    options = "".join(f" --collective {rule.replace('+', ',')}" for rule in rules)
    moved = record.get("wired_anew") is True
    return options + (" (its wiring is in the file that -x json=FILE writes)" if moved else "")


def _gain(before: float, seconds: float) -> str:
    share = before / seconds - 1
    return f"{share:.2%} faster" if share >= _WORTH else "hardly faster"


def algorithm_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return rows of a table: which algorithm runs which collectives, for each kind of group and size."""
    texts = _texts(_record(plan).get("algorithms"), shapes=True) or _texts(_named(plan), shapes=True)
    return [("collective algorithms" if number == 0 else "", text) for number, text in enumerate(texts)]


def _texts(rows: Any, *, with_rings: bool = True, shapes: bool = False) -> list[str]:
    """Return which algorithms run what: ``dp all-reduce by tree (2.1 MB)``, or ``dp 8x1 all-reduce by ...``."""
    listed = rows if isinstance(rows, Sequence) and not isinstance(rows, str) else []
    left_out = (None,) if with_rings else (None, "rings")
    texts = [_use(row, shapes) for row in listed if isinstance(row, Mapping) and row.get("algorithm") not in left_out]
    return [text for text in texts if text]


def _listed(texts: Sequence[str]) -> str:
    """Return the first of texts, and how many more there are."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{', '.join(texts[:_SHOWN])}{more}"


def _use(row: Mapping[str, Any], shapes: bool) -> str:
    low, high = row.get("least_bytes"), row.get("most_bytes")
    if not isinstance(low, int) or not isinstance(high, int):
        return ""
    sizes = _spelled(high) if low == high else f"{_spelled(low)} to {_spelled(high)}"
    axes, shape = row.get("axes"), row.get("shape")
    where = f"{axes} {shape}" if axes and shapes else axes or shape
    return f"{where} {row.get('collective')} by {row.get('algorithm')} ({sizes})"


def _spelled(nbytes: int) -> str:
    """Return bytes in the largest unit of which there is one.

    >>> _spelled(2_100_000), _spelled(900)
    ('2.1 MB', '900 B')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes} B"


def _record(plan: Plan) -> Mapping[str, Any]:
    """Return what the provenance has; a file may have anything there."""
    record = plan.provenance.get("joint")
    return record if isinstance(record, Mapping) else {}


def _named(plan: Plan) -> list[Any]:
    """Return what the provenance has of algorithms that the user names; a file may have anything there."""
    rows = plan.provenance.get("algorithms")
    return [*rows] if isinstance(rows, Sequence) and not isinstance(rows, str) else []
