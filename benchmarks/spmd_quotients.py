"""CPU seconds in which SPMD programs on many devices are planned and simulated: one device or host for all, and whole.

    .venv/bin/python benchmarks/spmd_quotients.py [SERVERSxDEVICES ...]

For each cluster, 8x64 and 16x64 unless given, the searcher spmd plans BERT-SGMoE as `topoplan optimize bert-sgmoe -s
spmd` does.  Every program that it proposes is lowered and simulated twice, in turn: as its quotient
(`topoplan_engine.lowering.spmd_quotient`), the least of three times, and as the whole task graph, once.  The two must
take equally long: the largest relative difference stands in the last column, 0 where all agree to the last bit.

A row has the programs, and how many of them were simulated by one host because groups wait for each other; the tasks
of all, whole and simulated; CPU seconds of planning on all meshes and of both kinds of simulation; how many times as
long whole task graphs take, for simulation alone and with planning; and CPU seconds of the whole command, its start
included.  A ratio is of one run; on a busy machine both sides are slower.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import beside
from topoplan import Host, State, Trial
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.spmd_host import host_tasks
from topoplan_engine.reporting.tables import markdown_row
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_simulator_fluid import Fluid

MODEL = "bert-sgmoe"
CLUSTERS = ("8x64", "16x64")
TITLES = (
    *("devices", "programs", "by one host", "tasks", "simulated", "planning, s", "quotients, s", "whole, s"),
    *("whole / quotients", "with planning", "command, s", "difference"),
)


def problem_of(servers, devices):
    """Return the problem of the command, and its fabric."""
    host = Host.discover()
    graph = host.make("frontend", MODEL, {}).build(None)
    cluster = build_cluster(ClusterOptions(servers=servers, gpus_per_server=devices, degree=1))
    costs = host.make("estimator", "roofline").build(graph, cluster)
    problem = problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))
    return problem, problem.build_fabric(None, np.random.default_rng(0))


def taken(call):
    """Return what a call returns, and its CPU seconds."""
    begun = time.process_time()
    result = call()
    return result, time.process_time() - begun


class Measurement:
    """The sums over all programs of one cluster."""

    def __init__(self, servers, devices):
        self._problem, self._fabric = problem_of(servers, devices)
        self._lowering = Lowering(self._problem.graph, self._problem.cluster, self._problem.costs)
        self._simulate = Fluid().build()
        self.programs = self.by_host = self.tasks = self.simulated = 0
        self.planning_s = self.quotients_s = self.whole_s = self.difference = 0.0

    def run(self):
        """Plan, and price what is proposed."""
        search = SpmdSearch(Spmd(), self._problem)
        start = State(self._problem.space.initial(), self._fabric)
        search.adopt(Trial(state=start, cost=np.inf, demand=lambda: None))
        while True:
            asked, seconds = taken(search.ask)
            self.planning_s += seconds
            if not asked:
                return
            search.tell([self._trial(candidate.state()) for candidate in asked])

    def _trial(self, state):
        cost = self._price(state.strategy) if (state.strategy.program is not None) else np.inf
        return Trial(state=state, cost=cost, demand=lambda: None, fits=cost < np.inf)

    def _price(self, strategy):
        lowering, simulate = self._lowering, self._simulate
        network = self._fabric, self._problem.cluster
        lowering.memory(strategy)  # prices of operators, which both sides need
        quotient = lowering.program_quotient(strategy, simulate.in_turn_bytes)
        least = np.inf
        for _ in range(3):
            cost, seconds = taken(
                lambda: simulate.program_makespan(lowering.program_quotient(strategy, simulate.in_turn_bytes), *network)
            )
            least = min(least, seconds)
        whole, seconds = taken(lambda: simulate.makespan(lowering.lower(strategy), *network))
        self.quotients_s, self.whole_s = self.quotients_s + least, self.whole_s + seconds
        self.programs, self.by_host = self.programs + 1, self.by_host + (max(quotient.apart) > 1)
        self.tasks, self.simulated = self.tasks + quotient.n_tasks, self.simulated + len(host_tasks(quotient).task)
        self.difference = max(self.difference, abs(cost - whole) / whole)
        return cost

    def row(self, command_s):
        """Return the cells of the table's row."""
        with_planning = (self.planning_s + self.whole_s) / (self.planning_s + self.quotients_s)
        return [
            str(self._problem.cluster.n_devices),
            str(self.programs),
            str(self.by_host),
            f"{self.tasks:,}",
            f"{self.simulated:,}",
            *(beside.shown(seconds) for seconds in (self.planning_s, self.quotients_s, self.whole_s)),
            f"{self.whole_s / self.quotients_s:.0f}",
            f"{with_planning:.1f}",
            beside.shown(command_s),
            f"{self.difference:.0e}" if self.difference else "0",
        ]


def main(clusters):
    Measurement(2, 2).run()  # loads the kernels
    print(beside.table(TITLES, []), flush=True)
    for servers, devices in clusters:
        measurement = Measurement(servers, devices)
        measurement.run()
        words = [sys.executable, "-m", "topoplan", "optimize", MODEL, "-s", "spmd"]
        command_s = beside.command_seconds([*words, f"--servers={servers}", f"--gpus-per-server={devices}"])
        print(markdown_row(measurement.row(command_s)), flush=True)


if __name__ == "__main__":
    try:
        sizes = [tuple(map(int, word.split("x"))) for word in sys.argv[1:] or CLUSTERS]
        assert all(len(size) == 2 and min(size) > 0 for size in sizes)
    except (ValueError, AssertionError):
        beside.refuse("takes clusters as SERVERSxDEVICES, such as 16x64")
    main(sizes)
