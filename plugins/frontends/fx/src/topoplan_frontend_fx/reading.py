"""The lines of a file, in the three forms that FlexFlow has written.

``name, inputs, operator, ...`` with numbers for operators (``python/flexflow/torch/fx.py`` of r20.12),
``name, inputs, users, operator, ...`` with names (r21.03 to r21.09), and the same with semicolons
(``python/flexflow/torch/model.py`` since r22).  Names of inputs and users end with a colon each, or with a comma.
"""

from __future__ import annotations

import attrs

from topoplan import TopoplanError
from topoplan.errors import shown

__all__ = ["Node", "parse"]

#: Numbers of operators in r20.12 (``OpType`` in ``flexflow_type.py``).
_NUMBERS = {
    "2011": "CONV2D",
    "2012": "EMBEDDING",
    "2013": "POOL2D",
    "2014": "LINEAR",
    "2015": "SOFTMAX",
    "2016": "CONCAT",
    "2017": "FLAT",
    "2021": "BATCH_NORM",
    "2022": "RELU",
    "2023": "SIGMOID",
    "2024": "TANH",
    "2025": "ELU",
    "2026": "DROPOUT",
    "2027": "BATCH_MATMUL",
    "2028": "SPLIT",
    "2029": "RESHAPE",
    "2030": "TRANSPOSE",
    "2041": "ADD",
    "2042": "SUBTRACT",
    "2043": "MULTIPLY",
    "2044": "DIVIDE",
    "2050": "INPUT",
    "2051": "OUTPUT",
}


@attrs.frozen
class Node:
    """A node.

    Attributes:
        where: file and line.
        name: its own.
        inputs: names of the nodes that it reads.
        users: names of the nodes that read it; empty where the form does not say.
        operator: its type.
        parameters: what follows the type.
    """

    where: str
    name: str
    inputs: tuple[str, ...]
    users: tuple[str, ...]
    operator: str
    parameters: tuple[str, ...]

    def integer(self, position: int, what: str, minimum: int | None = None) -> int:
        """Return an integer among the parameters.

        Raises:
            TopoplanError: it is missing, or none; the message names the line.
        """
        word = self.parameters[position] if position < len(self.parameters) else ""
        try:
            value = int(word)
        except ValueError:
            value = None
        if value is None or (minimum is not None and value < minimum):
            expected = "an integer" if minimum is None else f"an integer of at least {minimum}"
            raise TopoplanError(f"{self.where}: {self.operator}: {shown(word)} as {what} (expected {expected})")
        return value


def parse(text: str, file: str) -> list[Node]:
    """Read the lines of a file, empty ones left out.

    Raises:
        TopoplanError: a line is none of the three forms, or a name occurs twice; the message names the line.
    """
    nodes: dict[str, Node] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            node = _node(line, f"{file}: line {number}")
            if node.name in nodes:
                raise TopoplanError(f"{node.where}: node {shown(node.name)} occurs twice")
            nodes[node.name] = node
    if not nodes:
        raise TopoplanError(f"{file}: has no line (expected a file of FlexFlow's torch_to_flexflow)")
    return list(nodes.values())


def _node(line: str, where: str) -> Node:
    delimiter, within = (";", ",") if ";" in line else (",", ":")
    fields = [field.strip() for field in line.split(delimiter)]
    first_form = delimiter == "," and len(fields) > 2 and fields[2] in _NUMBERS
    fewest_fields = 3 if first_form else 4
    if len(fields) == 2 and delimiter == ";":  # an ATTRIBUTE has neither inputs nor users
        return Node(where, fields[0], (), (), fields[1], ())
    if len(fields) < fewest_fields or not fields[0]:
        raise TopoplanError(
            f"{where}: {shown(line.strip())} is no node (expected name; inputs; users; OPERATOR; parameters, "
            "as FlexFlow's torch_to_flexflow writes them)"
        )
    inputs = tuple(name.strip() for name in fields[1].split(within) if name.strip())
    if first_form:
        return Node(where, fields[0], inputs, (), _NUMBERS[fields[2]], tuple(fields[3:]))
    users = tuple(name.strip() for name in fields[2].split(within) if name.strip())
    return Node(where, fields[0], inputs, users, fields[3], tuple(fields[4:]))
