"""Times of the parts of operators: which parts there are, what work they do, and the files that hold measurements.

    operator, cut ─► parts: the shape that a kernel sees ─► timed by a command ─► table: our own file
                 └─► work: FLOPs and bytes                                   └─► flexnet: FlexNet's file

`parts` says which cuts of which operators look alike to a kernel, so that each is timed once. `work` counts FLOPs and
bytes. `speeds` prices them on faster devices. `table` reads and writes our own file of times, and `flexnet` writes
FlexNet's and knows its names of operators and cuts.
"""
