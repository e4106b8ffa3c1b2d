"""How a direct-connect network is wired for a demand: TopoOpt's rings and matchings, as a library.

Hosts are joined without packet switches: each of their interfaces leads to one other host, and hosts forward traffic
that is not their own.  The topologies ``topoopt`` and ``ocs`` and the searchers ``totientperm`` and ``relink`` build
their fabrics from these modules.  Source: Wang et al., "TopoOpt: Co-optimizing Network Topology and Parallelization
Strategy for Distributed Training Jobs", NSDI 2023, and FlexNet, its released simulator.

Data passes through them in this order:

* `traffic` turns a demand into bytes per ring size and a matrix of bytes between hosts.
* `split` divides the interfaces among rings.
* `permutations` chooses the steps of the rings.
* `matching` spends the remaining interfaces on direct links; `greedy` spends all of them so, without rings.
* `coins` finds rings for the group sizes that have none.
* `construct` puts the fabric together.
* `balance` splits traffic over the paths of a pair by load.
"""
