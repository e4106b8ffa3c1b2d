"""Networks side by side: every one searched for by itself, with the same budget, and priced.

Data flow: a TOML file or the command line becomes a `study.Study`: models, networks, what varies, seeds, claims.
`cells` unrolls it into one `Experiment` per model, network, variation and seed; `clusters` decides how fast a network
may be that has to cost as much as another one.  `work` runs the experiments in worker processes; `store` keeps each
finished one in a file of its own under a hash of everything that it depends on.  `rows` puts seeds together and
multiplies with prices; `claims` says whether the expected order holds, `notes` which costs are not equal and which
bandwidths not for sale; `tables`, `page` and `plot` show it.
"""
