"""The values: models, machines, networks, strategies, task graphs, plans.  Frozen, with read-only columns."""
