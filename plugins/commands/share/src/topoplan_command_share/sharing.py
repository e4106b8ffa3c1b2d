"""`share`: from the file of a shared cluster to what its jobs take, on every network and at every load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from topoplan.plugin.host import Host
from topoplan_command_share.hypotheses import LoadTest, load_tests
from topoplan_command_share.plans import NetworkPlan, plans
from topoplan_command_share.results import JobTime, LoadResult, job_times, load_results
from topoplan_command_share.shared_cluster import SharedCluster, read_shared_cluster, shared_cluster_from
from topoplan_command_share.table import share_table
from topoplan_studies.prices import Prices, default_prices, read_prices

__all__ = ["ShareReport", "share"]


@attrs.frozen(kw_only=True, eq=False)
class ShareReport:
    """What `share` returns.

    Attributes:
        shared: the cluster, its jobs and loads.
        networks: with the plan of each model; those with a plan that does not fit into memory come last.
        times: one for each job of each draw, load and network.
        results: means and tails of these, by network and load.
        tests: what came of the hypotheses of the study.
        prices: that networks were made to cost the same with.
    """

    shared: SharedCluster
    networks: Sequence[NetworkPlan]
    times: Sequence[JobTime]
    results: Sequence[LoadResult]
    tests: Sequence[LoadTest]
    prices: Prices

    def __repr__(self) -> str:
        return f"<ShareReport: {self.shared.study.title}, {len(self.networks)} networks, {len(self.times)} jobs>"

    def _repr_html_(self) -> str:
        return share_table(self.results, self.networks).html(self.shared.study.title)


def share(
    shared: SharedCluster | Mapping[str, Any] | Path | str,
    *,
    prices: Path | None = None,
    catalogue: bool = False,
    measures: Path | None = None,
    host: Host | None = None,
    on_progress: Callable[[str], None] = lambda name: None,
) -> ShareReport:
    """Fill a cluster with jobs, and time their iterations on several networks, shared or partitioned.

    Args:
        shared: tables as the TOML file has them, the path of one, or what was read of it.
        prices: file with prices; None for those that come with `topoplan_studies`.
        catalogue: take only parts that the prices list.
        measures: folder with the measurement files that models name.
        host: where components come from; all installed plugins unless given.
        on_progress: called after every search and every draw with what it was for.

    Raises:
        TopoplanError: something in the file is wrong, or a model cannot be planned.
        KeyboardInterrupt: the user stopped a search.
    """
    if isinstance(shared, Mapping):
        shared = shared_cluster_from(shared, "share", "share", allow_code=True)
    elif not isinstance(shared, SharedCluster):
        shared = read_shared_cluster(shared)
    all_prices = default_prices() if prices is None else read_prices(prices)
    chosen = all_prices.catalogue() if catalogue else all_prices
    networks = plans(shared, host or Host.discover(), chosen, measures, on_progress)
    times = job_times(shared, networks, on_progress)
    results = load_results(times)
    tests = load_tests(shared.study.hypotheses, results)
    return ShareReport(shared=shared, networks=networks, times=times, results=results, tests=tests, prices=chosen)
