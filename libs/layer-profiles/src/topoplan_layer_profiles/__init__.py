"""Layer profiles, as PipeDream's profiler writes them and DAPPLE's planner reads them.

`reading` parses the text of one, `profiles` has those that DAPPLE and HPGO published, and `graphs` makes an operator
graph of either.
"""
