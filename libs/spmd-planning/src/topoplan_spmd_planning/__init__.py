"""Planning of SPMD programs: HiDup's dynamic programming over shardings, as a library.

Data flows through the modules in this order:

* `program` converts an operator graph into one SPMD program, with the signatures of every instruction;
  `released` has the signatures of HiDup's table; `hints` omits those that the user's hints do not allow.
* `prices` prices instructions and reshardings ("conversions") with the estimator, as HiDup does.
* `columns` encodes both as integer columns; `counting` bounds the number of states before the search.
* `kernel` searches, in the tables of `tables`; `planning` runs it and reads the plan.
* `machine` prices collectives on a cluster and its fabric, for planners that minimize seconds.
* `strategy` converts a plan into a strategy, and `proposing` into a candidate.

Programs on meshes of several axes, which the searchers ``spmd`` and ``hybrid`` plan, have modules of their own: `space`
builds the program of a mesh, `mesh_prices` and `conversions` price it, `mesh_planning` finds the fastest plan within
the memory of the devices (`limits`, `bounds`), with equal layers planned equally (`uniform`); `known` keeps what
several meshes share.  Shardings are also called *forms* here.

Source: Zhang et al., "Accelerating large-scale distributed neural network training with SPMD parallelism" (HiDup), SoCC
2022.
"""
