"""Where independent jobs and the islands of a search run: processes of this machine, or a Dask cluster.

Data flow: a command line or a TOML file names an executor; `executor_from` makes it.  `run_jobs` takes jobs from a
`JobQueue`, starts them in the executor's `Pool`, and passes on results as they arrive.  Results depend neither on the
executor nor on the order in which jobs finish, since a job holds its own seed.
"""

from __future__ import annotations

from topoplan_engine.executors.base import Executor, JobQueue, Pool, Session
from topoplan_engine.executors.chosen import EXECUTORS, executor_from
from topoplan_engine.executors.jobs import run_jobs
from topoplan_engine.executors.processes import Processes

__all__ = ["EXECUTORS", "Executor", "JobQueue", "Pool", "Processes", "Session", "executor_from", "run_jobs"]
