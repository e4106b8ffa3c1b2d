"""Planning of pipelines: the layers of a model, and HPGO, the planner of DAPPLE, as a library.

Data flows through the modules in this order:

* `states` cuts an operator graph into layers, and `layers` sums the prices of their operators.
* `machine` prices communication, and `placing` selects the devices of a stage.
* `straight` is a dynamic program for stages of equal size; `planning` compares all families of plans.
* `latency` estimates the time of an iteration; `plans` has the plans as values, and `stages` converts them into
  strategies.

The searcher ``hpgo`` proposes these plans; ``pipeline`` cuts models by the same states and starts from the same plans.
Source: Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models", PPoPP 2021, and HPGO 0.9.2,
its released planner.
"""
