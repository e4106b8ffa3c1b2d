"""What simulators share: from the columns of a task graph to a timeline with its bounds.

`base` is what a simulator component builds: it prepares, runs and checks an iteration of one model.  `columns` are the
columns that kernels read, `messages` the packets and rounds that simulators send, `flows` the flows of the fluid model.
`bounds` and `critical_path` are lower bounds, over the topological order of `topological`.  `gradients` rewrites task
graphs for barriers and parameter servers; `phases` and `reconfiguration` are about fabrics that are rebuilt in time.
Models and kernels are those of the simulators' packages; `tests/reference` holds the same in plain Python.
"""
