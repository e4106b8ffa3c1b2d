"""Planning of pipelines: the layers of a model, and HPGO, the planner of DAPPLE, as a library.

Data flows through the modules in this order:

* `states` cuts an operator graph into layers, and `layers` sums the prices of their operators.
* `machine` says what communication costs, and `placing` which devices a stage gets.
* `straight` is a dynamic program for stages of equal size; `planning` compares all families of plans.
* `latency` says how long a pipeline takes; `plans` has the plans as values.

The searcher ``hpgo`` proposes these plans; ``pipeline`` cuts models by the same states and starts from the same plans.
Source: Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models", PPoPP 2021, and HPGO 0.9.2,
its released planner.
"""
