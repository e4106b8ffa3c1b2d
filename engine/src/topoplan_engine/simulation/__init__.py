"""Simulators: from a task graph on a fabric to a timeline.

`components` describes the two that come with topoplan and is all that the host loads; `run` is what they build.
Inside: `network` compiles paths and rings of a fabric, `flexnet` and `fluid` prepare and run one iteration,
`*_reference` hold the same models in plain Python, `bounds` what no schedule beats, and `gradients` rewrites task
graphs for barriers and parameter servers.
"""
