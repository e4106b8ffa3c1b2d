"""Measured iterations of language models, and what the product predicts for them.

    table (CSV) ─► group: row ─► MeasuredRow: a Run, and what was measured of it ┐
    stack: constants of a hardware with its software ────────────────────────────┼─► prediction ─► scores
                                                                                 └─► fit: constants by left-out groups

`rows` has the types, `tables` reads tables and knows them by their columns, `groups` has what each table's rows mean,
`stacks` the constants, `stack_costs` what they do to prices, `prediction` prices a run, `scoring` compares.
"""
