"""The searcher keeps the promises of every searcher, and restarts."""

import numpy as np

from topoplan.testing import parametrize_with_checks
from topoplan_searcher_annealing import Annealing
from topoplan_studies import compare_searchers


@parametrize_with_checks(Annealing)
def test_conformance(check):
    check()


def test_it_is_better_than_chance():
    report = compare_searchers(
        "alexnet", ["random", Annealing()], seeds=[1, 2, 3], budget=60, servers=4, batch_size=256
    )
    chance, annealing = (searcher.summary.median for searcher in report.comparison.places[0].searchers)
    assert annealing < chance


def test_a_restart_begins_at_the_best_state_with_the_first_temperature():
    class Priced:
        def __init__(self, cost):
            self.cost, self.rank, self.state = cost, (False, cost), None

    search = Annealing(restart=2, cooling=0.5).build(None, np.random.default_rng(0))
    best = Priced(1.0)
    search.adopt(best)
    search.limit = 9.0
    search.tell([Priced(2.0)])
    assert search.current.cost == 2.0
    assert search.temperature == 0.025
    search.tell([Priced(3.0)])
    assert search.current is best
    assert search.temperature == 0.05
