"""A worker around HiDup's released search module ``spmd``; runs on the CPython 3.7 that it was built for.

A request has ``nodes``, ``profile`` and ``hints`` as the module takes them, except that nodes are plain objects that
name each other by number; no PyTorch is needed.  The answer has the number of ``stages`` and, from what the module
says while it searches, of ``states`` and frontier ``entries``.  `beside` says what a worker is.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time

import spmd

PROGRESS = re.compile(r"(\d+) states?, and (\d+) paths?", re.IGNORECASE)


class Node:
    """What the module reads of a node of a PyTorch trace."""

    def __init__(self, number, given):
        self.op = given["op"]
        self.name = given["name"]
        self.meta = dict(given["meta"], id=number)
        self.all_input_nodes = []
        self.args = ()


def nodes_of(request):
    """Return the nodes of a request: lists become tuples, and numbers the nodes that they stand for."""
    made = []
    for number, given in enumerate(request["nodes"]):
        node = Node(number, given)
        node.all_input_nodes = [made[k] for k in given["inputs"]]
        if "item" in given:
            node.args = (node.all_input_nodes[0], given["item"])
        meta = node.meta
        if "output_shape" in meta:
            several = meta.get("output_is_tuple")
            shape = meta["output_shape"]
            meta["output_shape"] = tuple(map(tuple, shape)) if several else tuple(shape)
        if "signatures" in meta:
            meta["arg_dict"] = {str(k): made[k] for k in given["inputs"]}
            meta["signatures"] = [(needs, tuple(g) if isinstance(g, list) else g) for needs, g in meta["signatures"]]
        made.append(node)
    return made


def main():
    """Answer requests.  The module talks on both outputs, past Python: that goes into a file."""
    answers = os.fdopen(os.dup(1), "w")
    with tempfile.TemporaryFile("w+") as said:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for line in sys.stdin:
            request = json.loads(line)
            nodes = nodes_of(request)
            errors = os.dup(2)
            said.seek(0)
            said.truncate()
            os.dup2(said.fileno(), 2)
            try:
                begun = time.process_time()
                stages = spmd.spmd(nodes, request["profile"], request["hints"])
                taken = time.process_time() - begun
            finally:
                os.dup2(errors, 2)
                os.close(errors)
            said.seek(0)
            counts = [tuple(map(int, found)) for found in PROGRESS.findall(said.read())]
            answer = {"cpu_s": taken, "stages": len(stages)}
            answer.update(states=sum(n for n, _ in counts), entries=sum(n for _, n in counts))
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


main()
