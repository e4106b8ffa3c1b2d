"""Builds direct-connect networks for a demand: TopoOpt's rings and matchings, as a library.

There are no packet switches: each interface leads to one other host, and hosts forward traffic of other hosts.  The
topologies ``topoopt`` and ``ocs`` and the searchers ``totientperm`` and ``relink`` build their fabrics with these
modules.  Source: Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for Distributed
Training Jobs", NSDI 2023, and FlexNet, its released simulator.

Data flow:

* `traffic` converts a demand into bytes per ring size and a matrix of bytes between hosts.
* `split` divides the interfaces among rings.
* `permutations` selects the steps of the rings.
* `matching` uses the remaining interfaces for direct links; `greedy` uses all of them, without rings.
* `coins` finds rings for the group sizes without links.
* `construct` builds the fabric.
* `balance` splits traffic over the paths of a pair by load.
"""
