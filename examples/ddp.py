"""Data parallel training with DistributedDataParallel that does not know where it runs: on a laptop `python ddp.py` trains alone, and
`torchrun --nproc-per-node=2 ddp.py` or a gang (ddp.yaml) trains with several processes, to the same loss. Each epoch is a checkpoint; when a rank
dies, all go on from the last one."""
import os
import sys
import time

import torch

from hops import checkpoint, dist


def train(lr, reporter, epochs=30, pause=0.0, times=""):
    ctx = dist.context()
    torch.manual_seed(1)
    model = ctx.wrap(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    x = torch.randn(512, 16)
    loader = ctx.loader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=64 // ctx.world, shuffle=True)
    done, loss = 0, 0.0
    saved = checkpoint.load()
    if saved:
        done, state = saved
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loss = state["loss"]
    for epoch in range(done + 1, int(epochs) + 1):
        if ctx.world > 1:
            loader.set_epoch(epoch)
        total = 0.0
        for a, b in loader:
            optimizer.zero_grad()
            error = ((model(a.to(ctx.device)) - b.to(ctx.device)) ** 2).mean()
            error.backward()
            optimizer.step()
            total += error.item()
        loss = ctx.all_reduce(total / len(loader), "mean")
        if times:  # for who kills a rank and wants to know when it went on
            with open(times, "a") as f:
                f.write("%.3f generation %d rank %d pid %d epoch %d loss %.6f\n" % (time.time(), ctx.generation, ctx.rank, os.getpid(), epoch, loss))
        reporter.broadcast(loss, epoch)
        if ctx.is_chief:
            checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": loss}, epoch)
        time.sleep(float(pause))
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    spread = (ctx.all_reduce(weights, "max") - ctx.all_reduce(weights, "min")).abs().max() if ctx.world > 1 else 0.0
    print("rank %d of %d: loss %.6f, weights differ by %g" % (ctx.rank, ctx.world, loss, float(spread)))
    if spread:
        raise RuntimeError("the ranks have different weights")
    return loss


if __name__ == "__main__":
    from hops.experiment import Reporter

    print("loss %.6f" % train(0.05, Reporter(), *map(float, sys.argv[1:])))
