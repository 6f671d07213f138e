"""torch.distributed.checkpoint into the cluster, by all ranks of a gang: each writes its own part of a tensor, and all is read back, also into
another division of it."""
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import hops.dist
from hops import checkpoint


def train(rows, reporter):
    ctx = hops.dist.context()
    if ctx.world != 2:
        raise RuntimeError("this wants a gang of two ranks, not %d" % ctx.world)
    ctx.barrier()  # begins torch.distributed
    mesh = init_device_mesh("cpu", (ctx.world,))
    whole = torch.arange(rows * 256.0).reshape(rows, 256)
    wrong = 0
    for step in (1, 2):
        state = {"sharded": distribute_tensor(whole + step, mesh, [Shard(0)]), "same": torch.full((3,), float(step)), "step": step}
        dcp.save(state, storage_writer=checkpoint.dcp_writer(step))
        dist.barrier()
        checkpoint.commit_dir(step)
        directory = ctx.broadcast_object(checkpoint.latest())[1]
        for placement in (Shard(0), Shard(1), Replicate()):
            found = {"sharded": distribute_tensor(torch.zeros_like(whole), mesh, [placement]), "same": torch.zeros(3), "step": 0}
            dcp.load(found, storage_reader=checkpoint.dcp_reader(directory))
            wrong += int((found["sharded"].full_tensor() != whole + step).sum()) + int((found["same"] != step).sum()) + (found["step"] != step)
        reporter.broadcast(wrong, step)
    if wrong:
        raise RuntimeError("rank %d: %d numbers are others than were saved" % (ctx.rank, wrong))
    print("DCP rank %d of %d: two checkpoints came back in three divisions" % (ctx.rank, ctx.world))
    return float(wrong)
