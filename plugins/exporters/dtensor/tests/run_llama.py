"""Run the small Llama under an exported plan, in one of several processes that torchrun started, and compare.

    torchrun … run_llama.py FOLDER [GPT:]PLAN[,SCHEDULE]…

GPT is a function of `topoplan_samples.gpt`, for a plan of that module.

Every process compares its gradients with those of the module by itself, and writes what differs to
``FOLDER/RANK.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import distributed

from topoplan_exporter_dtensor.modules import mesh_of, parallelize
from topoplan_exporter_dtensor.pipelines import Pipeline
from topoplan_exporter_dtensor.reader import read
from topoplan_samples import gpt, llama


def difference(ours, theirs):
    """The largest difference, over the largest value; over 1 where there is none (the bias of keys)."""
    largest = float(theirs.abs().max())
    return float((ours - theirs).abs().max()) / (largest if largest > 1e-14 else 1.0)


def program(path):
    """Run under an SPMD program."""
    name, _, path = path.rpartition(":")
    make = getattr(gpt, name) if name else llama.module
    document = read(path)
    model = parallelize(make(), document, mesh_of(document, "cpu"))
    tokens, targets = llama.data()
    scores = model(tokens)
    value = llama.loss(scores.full_tensor(), targets)
    value.backward()
    expected, gradients = llama.alone(make)
    own = {name.replace("parametrizations.", "").replace(".original", ""): p for name, p in model.named_parameters()}
    assert own.keys() == gradients.keys()
    return {
        "loss": abs(float(value.detach()) - expected) / expected,
        "gradients": max(difference(own[name].grad.full_tensor(), theirs) for name, theirs in gradients.items()),
        "placed": all(p.grad.placements == p.placements for p in own.values()),
        "local": {name: list(p.to_local().shape) for name, p in own.items()},
        "scores": [str(placement) for placement in scores.placements],
    }


def pipeline(path, schedule):
    """Run as a pipeline."""
    tokens, targets = llama.data()
    running = Pipeline(llama.module(), read(path), schedule, (tokens,), llama.loss, "cpu")
    value = running.step(tokens, target=targets)
    expected, gradients = llama.alone()
    own = {name: p for module in running.modules.values() for name, p in module.named_parameters()}
    return {
        "loss": None if value is None else abs(float(value.detach()) - expected) / expected,
        "gradients": max(difference(p.grad, gradients[name]) for name, p in own.items()),
        "names": sorted(own),
        "replica": running.replica,
    }


def main():
    """Join the other processes and compare."""
    folder, *plans = sys.argv[1:]
    distributed.init_process_group("gloo")
    found = [pipeline(*plan.split(",")) if "," in plan else program(plan) for plan in plans]
    Path(folder, f"{distributed.get_rank()}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
