"""Shardings: the signatures of operators, resharding, and whether an SPMD program is sound."""
