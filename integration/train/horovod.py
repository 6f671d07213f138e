"""A notebook that calls hvd.init(), launched as HopsML's users do, and one function that averages by Horovod without knowing of it."""
import json
import os
import tempfile

from hops import allreduce, dist, experiment, hdfs


def train():
    import torch
    ctx = dist.context()
    torch.manual_seed(ctx.rank)  # wrap() takes the parameters of rank 0
    model = ctx.wrap(torch.nn.Linear(3, 1, bias=False))
    unused = ctx.wrap(torch.nn.Linear(1, 1))  # of no use to rank 1
    before = model.weight.detach().clone()
    for _ in range(2):  # gradients of several passes add up
        loss = model(torch.full((1, 3), float(ctx.rank))).sum() + (unused(torch.ones(1, 1)).sum() * 4 if ctx.rank == 0 else 0)
        if ctx.rank == 1:
            loss = loss + 0 * unused.weight.sum()
        loss.backward()
    moved = ctx.all_reduce(before, "max") - ctx.all_reduce(before, "min")
    ctx.barrier()
    return {"metric": ctx.all_reduce(1), "gradient": model.weight.grad.flatten().tolist(), "other": unused.bias.grad.item(), "spread": moved.abs().max().item(),
            "chief": ctx.broadcast_object({"rank": ctx.rank}), "names": sorted(model.state_dict())}


cells = ["import horovod.torch as hvd\nimport torch\nfrom hops import hdfs\nhvd.init()\n",
         "%matplotlib inline\ntotal = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum).item()\n",
         "hdfs.dump('%d of %d: %g' % (hvd.rank(), hvd.size(), total), 'ranks/%d' % hvd.rank())\n"]
with tempfile.TemporaryDirectory() as folder:
    notebook = os.path.join(folder, "averages.ipynb")
    with open(notebook, "w") as f:
        json.dump({"cells": [{"cell_type": "code", "source": text} for text in cells]}, f)
    allreduce.launch(None, notebook, executors=3, memory="1GiB", project="horovod", quiet=True)
said = sorted(hdfs.load(p).decode() for p in hdfs.ls("/Projects/horovod/ranks"))
assert said == ["%d of 3: 6" % rank for rank in range(3)], said

outputs = experiment.mirrored(train, executors=2, framework="horovod", memory="1GiB", project="horovod", quiet=True)[1]
want = {"metric": 2.0, "gradient": [1.0, 1.0, 1.0], "other": 4.0, "spread": 0.0, "chief": {"rank": 0}, "names": ["weight"]}
assert outputs == want, outputs
print("RESULT a notebook on 3 ranks, hops.dist on 2")
