"""Files of traces -> the traces of all ranks -> a plan.

A set of traces is ``<name>.<rank>.et`` for the ranks 0, 1, 2 …, and one JSON file of process groups whose name has
``comm_group`` in it, if some collective names a group.  Other files, as those of ASTRA-sim's system, are left alone.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping

import attrs

from topoplan import Plan, TopoplanError
from topoplan.errors import TopoplanWarning, shown
from topoplan_engine.folders import files_of
from topoplan_exporter_chakra.schema import Node, NodeType, Trace, decode

__all__ = ["Ranks", "on_cpu", "plan_of"]

#: Ranks of the largest set that is read, and signs of the number of one.
_MOST_RANKS, _DIGITS = 2**20, 7


@attrs.frozen
class Ranks:
    """The traces of all ranks.

    Attributes:
        name: of the folder or archive, for messages.
        traces: by rank.
        files: names of files, by rank.
        groups: ranks of each process group, by name; None where no file holds them.
    """

    name: str
    traces: tuple[Trace, ...]
    files: tuple[str, ...]
    groups: Mapping[str, tuple[int, ...]] | None

    def where(self, rank: int, node: Node | None = None) -> str:
        """Return a file, or a node in it, for a message."""
        file = f"{self.name}/{self.files[rank]}"
        return file if node is None else f"{file}: node {node.id} ({shown(node.name)})"


def plan_of(data: bytes, name: str) -> Plan:
    """Read an archive of traces; ``name`` is for messages.

    Raises:
        TopoplanError: a file is damaged or missing, or the traces do not fit each other.
    """
    from topoplan_exporter_chakra import foreign, own
    from topoplan_exporter_chakra.extras import METADATA

    ranks = _ranks(files_of(data, name), name)
    check_messages(ranks)
    read = own.plan_of if METADATA in ranks.traces[0].attributes else foreign.plan_of
    plan = read(ranks)
    plan.taskgraph.check(name)
    return plan


def _ranks(files: Mapping[str, bytes], name: str) -> Ranks:
    """Read all files of a set."""
    named: dict[int, str] = {}
    stems = set()
    for file in files:
        if match := re.fullmatch(rf"(.*)\.(0|[1-9]\d{{0,{_DIGITS - 1}}})\.et", file):
            named[int(match[2])] = file
            stems.add(match[1])
        elif file.endswith(".et"):
            raise TopoplanError(
                f"{name}/{file}: is no trace of a rank by its name (expected NAME.RANK.et, as rank.0.et)"
            )
    if not named:
        raise TopoplanError(f"{name}: holds no trace (expected files NAME.RANK.et, as rank.0.et)")
    if len(stems) > 1:
        first, second = sorted(stems)[:2]
        raise TopoplanError(f"{name}: holds traces of several runs, {shown(first)} and {shown(second)} (give one run)")
    missing = next((rank for rank in range(len(named)) if rank not in named), None)
    if missing is not None:
        stem, last = next(iter(stems)), max(named)
        raise TopoplanError(
            f"{name}: rank {missing} is missing ({stem}.{missing}.et; there are traces up to rank {last})"
        )
    names = tuple(named[rank] for rank in range(len(named)))
    traces = tuple(decode(files[file], f"{name}/{file}") for file in names)
    ranks = Ranks(name, traces, names, _groups(files, name, len(names)))
    if ranks.groups is None:
        ranks = attrs.evolve(ranks, groups=_groups_of_pytorch(ranks))
    _warn_of_absent(ranks)
    return ranks


def _warn_of_absent(ranks: Ranks) -> None:
    """Say how many dependencies lead to nodes that the traces lack."""
    lost = [(rank, *each) for rank, trace in enumerate(ranks.traces) for each in trace.absent]
    if lost:
        rank, node, needed = lost[0]
        note = f"{len(lost)} dependencies on nodes that the traces lack are left out, as in ASTRA-sim (first: {needed})"
        warnings.warn(TopoplanWarning(f"{ranks.where(rank, node)}: {note}"), stacklevel=2)


def _groups_of_pytorch(ranks: Ranks) -> dict[str, tuple[int, ...]] | None:
    """Read the process groups that PyTorch writes into nodes of metadata; None where there are none.

    Their inputs are the text of a list of one text of JSON: groups, with ``pg_name`` and ``ranks``, which is empty for
    all of them.

    Raises:
        TopoplanError: two ranks say different things of a group, or one names a rank that has no trace.
    """
    groups: dict[str, tuple[int, ...]] = {}
    for rank, trace in enumerate(ranks.traces):
        for node in trace.nodes:
            if node.type is not NodeType.METADATA or "pg_name" not in node.inputs:
                continue
            try:
                rows = json.loads(node.inputs[2:-2])
                named = [(str(row["pg_name"]), tuple(row["ranks"])) for row in rows]
            except (ValueError, RecursionError, TypeError, KeyError):
                raise TopoplanError(f"{ranks.where(rank, node)}: its inputs are no process groups (JSON)") from None
            for name, members in named:
                members = members or tuple(range(len(ranks.traces)))
                if not all(type(each) is int and 0 <= each < len(ranks.traces) for each in members):
                    last = f"the last trace is of rank {len(ranks.traces) - 1}"
                    raise TopoplanError(f"{ranks.where(rank, node)}: group {shown(name)} is {shown(members)} ({last})")
                if groups.setdefault(name, members) != members:
                    what = f"group {shown(name)} is {shown(members)}, but {shown(groups[name])} of another rank"
                    raise TopoplanError(f"{ranks.where(rank, node)}: {what}")
    return groups or None


def _groups(files: Mapping[str, bytes], name: str, n_ranks: int) -> dict[str, tuple[int, ...]] | None:
    """Read the process groups: a JSON object of lists of ranks."""
    group_files = sorted(file for file in files if "comm_group" in file and file.endswith(".json"))
    if not group_files:
        return None
    if len(group_files) > 1:
        raise TopoplanError(
            f"{name}: holds several files of process groups, {group_files[0]} and {group_files[1]} (keep one)"
        )
    where = f"{name}/{group_files[0]}"
    try:
        document = json.loads(files[group_files[0]])
    except (ValueError, RecursionError) as error:
        raise TopoplanError(f"{where}: is no JSON ({error})") from None
    if not isinstance(document, dict):
        raise TopoplanError(f'{where}: is no JSON object (expected lists of ranks by name, as {{"1": [0, 1]}})')
    for group, members in document.items():
        right = isinstance(members, list) and all(type(each) is int for each in members)
        if not right or not members or len(set(members)) < len(members):
            raise TopoplanError(f"{where}: group {shown(group)} is {shown(members)} (expected different ranks)")
        if not 0 <= min(members) <= max(members) < n_ranks:
            raise TopoplanError(
                f"{where}: group {shown(group)} names rank {max(members)} (the last trace is of rank {n_ranks - 1})"
            )
    return {group: tuple(members) for group, members in document.items()}


def integer(
    ranks: Ranks, rank: int, node: Node, attribute: str, low: int, high: int, default: int | None = None
) -> int:
    """Return an attribute that must be an integer in a range, both ends included.

    Raises:
        TopoplanError: the node lacks it without a default, or it is something else.
    """
    value = node.attributes.get(attribute, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        what = f"has no {attribute}" if value is None else f"has {attribute} {shown(value)}"
        raise TopoplanError(f"{ranks.where(rank, node)} {what} (expected an integer from {low} to {high})")
    return value


def message_ends(ranks: Ranks, rank: int, node: Node) -> tuple[int, int, int]:
    """Return source, destination and tag of a SEND or RECV.

    PyTorch's converter writes neither the peer nor a tag; in a process group of two the peer is the other one.
    """
    last = len(ranks.traces) - 1
    sends = node.type is NodeType.SEND
    group = (ranks.groups or {}).get(str(node.attributes.get("pg_name", "")), ())
    peer = sum(group) - rank if len(group) == 2 and rank in group else None
    src = integer(ranks, rank, node, "comm_src", 0, last, rank if sends else peer)
    dst = integer(ranks, rank, node, "comm_dst", 0, last, peer if sends else rank)
    if (src if sends else dst) != rank:
        what = f"comm_src {src}" if sends else f"comm_dst {dst}"
        raise TopoplanError(f"{ranks.where(rank, node)} has {what}, but is in the trace of rank {rank}")
    return src, dst, integer(ranks, rank, node, "comm_tag", 0, 2**63 - 1, 0)


def on_cpu(node: Node) -> bool:
    """Return whether a node is an operator of the CPU: of a message or a collective, the call and no transfer.

    A call that says what is sent is the message itself, as where gradients are reduced by the CPU.
    """
    if node.attributes.get("is_cpu_op", False) not in (True, 1):
        return False
    says = {NodeType.COLL: "comm_type", NodeType.SEND: "comm_dst", NodeType.RECV: "comm_src"}.get(node.type)
    return says is None or says not in node.attributes


def check_messages(ranks: Ranks) -> None:
    """Raise where a SEND has no RECV, or a RECV no SEND, of its source, destination and tag."""
    matched(ranks)


def matched(ranks: Ranks) -> dict[tuple[int, int], tuple[int, int]]:
    """Return for the RECV at (rank, id) the SEND at (rank, id): the n-th of the same source, destination and tag.

    Raises:
        TopoplanError: one of them has no partner.
    """
    sides: dict[NodeType, dict[tuple[int, int, int], list[tuple[int, Node]]]] = {NodeType.SEND: {}, NodeType.RECV: {}}
    for rank, trace in enumerate(ranks.traces):
        for node in sorted(trace.nodes, key=lambda node: node.id):
            if node.type in sides and not on_cpu(node):
                sides[node.type].setdefault(message_ends(ranks, rank, node), []).append((rank, node))
    partner = {}
    for side, opposite in ((NodeType.SEND, NodeType.RECV), (NodeType.RECV, NodeType.SEND)):
        for ends, nodes in sides[side].items():
            partners = sides[opposite].get(ends, [])
            if len(partners) < len(nodes):
                rank, node = nodes[len(partners)]
                raise TopoplanError(
                    f"{ranks.where(rank, node)}: {side.name} from rank {ends[0]} to rank {ends[1]} with tag {ends[2]} "
                    f"has no {opposite.name} (its trace needs one)"
                )
            for (rank, node), (other_rank, match) in zip(nodes, partners, strict=False):
                if side is NodeType.RECV:
                    partner[rank, node.id] = other_rank, match.id
    return partner
