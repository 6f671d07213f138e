"""Data parallel training as Horovod's own documentation has it: hvd.init() needs no horovodrun here. Rank 0 saves, and after the death of a rank all
begin again with what it has saved last. `python horovod_gang.py` trains alone."""
import os
import time

import horovod.torch as hvd
import torch

from hops import checkpoint, dist


def train(lr, reporter, epochs=30, pause=0.0, times=""):
    hvd.init()
    if torch.cuda.is_available():
        torch.cuda.set_device(hvd.local_rank())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1 + hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    done, loss = 0, 0.0
    saved = checkpoint.load() if hvd.rank() == 0 else None
    if saved:
        done, state = saved
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    done = hvd.broadcast_object(done, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    x = torch.randn(512, 16, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    sampler = torch.utils.data.distributed.DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
    loader = torch.utils.data.DataLoader(data, batch_size=64 // hvd.size(), sampler=sampler)
    for epoch in range(done + 1, int(epochs) + 1):
        sampler.set_epoch(epoch)
        total = 0.0
        for a, b in loader:
            optimizer.zero_grad()
            error = ((model(a.to(device)) - b.to(device)) ** 2).mean()
            error.backward()
            optimizer.step()
            total += error.item()
        loss = hvd.allreduce(torch.tensor(total / len(loader))).item()
        if times:  # for who kills a rank and wants to know when it went on
            with open(times, "a") as f:
                f.write("%.3f generation %d rank %d pid %d epoch %d loss %.6f\n" % (time.time(), dist.context().generation, hvd.rank(), os.getpid(), epoch, loss))
        reporter.broadcast(loss, epoch)
        if hvd.rank() == 0:
            checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, epoch)
        time.sleep(float(pause))
    weights = hvd.allgather(torch.cat([p.detach().flatten() for p in model.parameters()])[None])
    spread = float((weights - weights[0]).abs().max())
    print("rank %d of %d, local rank %d of %d: loss %.6f, weights differ by %g" % (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), loss, spread))
    if spread:
        raise RuntimeError("the ranks have different weights")
    return loss


if __name__ == "__main__":
    from hops.experiment import Reporter

    print("loss %.6f" % train(0.05, Reporter()))
