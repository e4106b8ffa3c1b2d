"""Run a module as an exported file says, in one of several processes, and compare with the module by itself.

    python apply_dtensor.py RANK WORLD FOLDER FILE...

Every process reads the files, makes the same module and data, places parameters with `distribute_tensor` and brings
inputs to each operator's placements with `redistribute`.  The first one writes ``FOLDER/result.json``: for every file
what differs from the module by itself.  `FOLDER/store` is where the processes meet.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional

WORDS = {"Replicate()": Replicate, "Partial()": Partial}


def module() -> torch.nn.Module:
    """Two linear layers, the same in every process."""
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))


def placements(words: list[str]) -> list[object]:
    """Read placements."""
    return [
        Shard(int(found[1])) if (found := re.fullmatch(r"Shard\((\d+)\)", word)) else WORDS[word]() for word in words
    ]


def run(document: dict, data: torch.Tensor, parameters: dict[str, list[torch.Tensor]]) -> tuple[DTensor, dict, int]:
    """Run the operators in order; return the loss, the placed parameters, and how many outputs lie as they are told."""
    meshes = {
        name: DeviceMesh("cpu", told["devices"], mesh_dim_names=tuple(told["dim_names"]))
        for name, told in document["meshes"].items()
    }
    source = {(v, into): (u, out) for u, out, v, into in document["edges"]}
    made: dict[tuple[int, int], DTensor] = {}
    placed, told_right = {}, 0
    for index, operator in enumerate(document["operators"]):
        mesh = meshes[operator["mesh"]]
        inputs = []
        for into, told in enumerate(operator["inputs"]):
            if (index, into) in source:
                given = made[source[index, into]]
            else:
                given = distribute_tensor(data, mesh, placements(told.get("stored", told["placements"])))
            assert list(given.shape) == told["shape"]
            inputs.append(given.redistribute(mesh, placements(told["placements"])))
        weights = []
        for tensor, told in zip(parameters.get(operator["name"], []), operator["weights"], strict=True):
            leaf = distribute_tensor(tensor, mesh, placements(told.get("stored", told["placements"])))
            leaf = leaf.detach().requires_grad_()
            placed.setdefault(operator["name"], []).append(leaf)
            weights.append(leaf.redistribute(mesh, placements(told["placements"])))
        if operator["kind"] == "linear":
            output = functional.linear(inputs[0], *weights)
        else:
            output = {"relu": torch.relu, "sum": torch.sum}[operator["kind"]](inputs[0])
        told_right += list(output.placements) == placements(operator["outputs"][0]["placements"])
        made[index, 0] = output
    return output, placed, told_right


def compare(document: dict) -> dict:
    """Return what differs between the module as the file says and by itself."""
    alone = module()
    torch.manual_seed(2)
    data = torch.randn(8, 16)
    loss = alone(data).sum()
    loss.backward()
    own = dict(alone.named_parameters())
    names = {"up": ("0.weight", "0.bias"), "down": ("2.weight", "2.bias")}
    parameters = {name: [own[key].detach() for key in keys] for name, keys in names.items()}
    total, placed, told_right = run(document, data, parameters)
    assert isinstance(total, DTensor)
    total.redistribute(total.device_mesh, [Replicate()] * total.device_mesh.ndim).backward()
    worst = max(
        float((leaf.grad.full_tensor() - own[key].grad).abs().max() / own[key].grad.abs().max())
        for name, leaves in placed.items()
        for leaf, key in zip(leaves, names[name], strict=True)
    )
    local = {f"{name}.{k}": list(leaf.to_local().shape) for name, ls in placed.items() for k, leaf in enumerate(ls)}
    return {
        "loss": abs(float(total.full_tensor()) - float(loss)) / abs(float(loss)),
        "gradients": worst,
        "told_right": told_right,
        "operators": len(document["operators"]),
        "local": local,
    }


def main() -> None:
    """Join the other processes and compare."""
    rank, world, folder, *files = sys.argv[1:]
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(world))
    found = [compare(json.loads(Path(file).read_text())) for file in files]
    if rank == "0":
        Path(folder, "result.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
