"""A mixture of experts for images of handwritten digits, after FlexFlow's example.

A gate of two layers rates the experts, the best ones of every sample get it, and their answers are added
up, weighted by the gate.  FlexNet's dialect adds what its example adds: a cache of the choice, and a
second aggregation for the experts' own loss; FlexNet itself cannot run the example.
"""

from __future__ import annotations

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_frontend_moe import Moe
from topoplan_operators import GraphBuilder, with_preset

WHERE = "frontend moe"


def build(options: Moe, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: gate, dispatch, experts, combination.

    Raises:
        TopoplanError: more choices than experts, or a number that is too small.
    """
    o, batch = with_preset(WHERE, options, batch_size, Moe)
    if o.num_select > o.num_exp:
        raise TopoplanError(f"{WHERE}: num-select: {o.num_select} is more than num-exp {o.num_exp}")
    b = GraphBuilder("moe", batch, o.dialect)
    x = b.input((o.in_dim,))
    rating = b.linear(x, o.hidden_size, activation="relu", name="gate1")
    rating = b.linear(rating, o.num_exp, activation="relu", name="gate2")
    values, indices = b.top_k(rating, o.num_select, name="choose")
    if o.dialect == "flexnet":
        b.cache(indices)
    shares = b.group_by(x, indices, o.num_exp, o.alpha, name="dispatch")
    gates = [b.softmax(values, name="gate_softmax"), indices]
    if o.dialect == "flexnet":
        gates += [indices, rating]
    answers = []
    for k, share in enumerate(shares):
        answer = b.linear(share, o.out_dim, activation="relu", name=f"expert{k}")
        answers.append(b.softmax(answer, name=f"expert{k}_softmax"))
    b.aggregate(gates, answers, name="combine")
    if o.dialect == "flexnet":
        b.aggregate_spec(gates, answers)
    return b.build()
