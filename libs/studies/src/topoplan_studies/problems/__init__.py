"""Benchmark problems for search algorithms: a model, a machine and a network each, by name.

Data flow: `reading.standard_problems` reads the set that comes with this package (``standard.toml``) into values
`BenchmarkProblem`, whose `experiment` adds searchers, a budget and a seed to one; `topoplan_engine.optimize` runs it.
"""

from __future__ import annotations

from topoplan_studies.problems.reading import (
    BenchmarkProblem,
    named_problems,
    read_problems,
    standard_problems,
)

__all__ = ["BenchmarkProblem", "named_problems", "read_problems", "standard_problems"]
