"""Planning of SPMD programs: HiDup's dynamic programming over shardings, as a library.

Data flows through the modules in this order:

* `program` writes an operator graph down as one SPMD program, with the signatures of every instruction;
  `released` has the signatures that HiDup knows.
* `prices` asks the estimator what instructions and conversions take, as HiDup counts it.
* `columns` codes both as integer columns; `counting` bounds the number of states before the search.
* `kernel` searches, in the tables of `tables`; `planning` runs it and reads the plan.
* `strategy` makes a strategy of a plan, and `proposing` a candidate for the search.

The searchers ``hidup`` and ``spmd`` share these modules; ``spmd`` has prices and a space of its own.  Source: Zhang et
al., "Accelerating large-scale distributed neural network training with SPMD parallelism" (HiDup), SoCC 2022.
"""
