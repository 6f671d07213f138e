"""Hugging Face Accelerate, unchanged: it finds the other processes of its gang by torchrun's variables (accelerate_gang.yaml), and alone it is alone
(`python accelerate_gang.py`). Each epoch is a checkpoint; when a rank dies, all go on from the last one.

Needs torch and accelerate.
"""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from hops import checkpoint


def train(lr, reporter, epochs=5):
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    set_seed(1)
    x = torch.randn(512, 16)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    done, loss = 0, 0.0
    saved = checkpoint.load()
    if saved:
        done, state = saved
        model.load_state_dict(state["model"])
        loss = state["loss"]
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for epoch in range(done + 1, int(epochs) + 1):
        total = torch.zeros(1, device=accelerator.device)
        for a, b in data:
            error = torch.nn.functional.mse_loss(model(a), b)
            accelerator.backward(error)
            optimizer.step()
            optimizer.zero_grad()
            total += error.detach()
        loss = accelerator.gather(total / len(data)).mean().item()
        reporter.broadcast(loss, epoch)
        checkpoint.save({"model": accelerator.unwrap_model(model).state_dict(), "loss": loss}, epoch)  # the chief saves, the others do nothing
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    all_weights = accelerator.gather(weights).view(accelerator.num_processes, -1)
    spread = (all_weights.max(0).values - all_weights.min(0).values).max().item()
    if spread:
        raise RuntimeError("the ranks have weights that differ by %g" % spread)
    print("process %d of %d (%s): loss %.6f" % (accelerator.process_index, accelerator.num_processes, accelerator.distributed_type.value, loss))
    return {"loss": loss, "processes": accelerator.num_processes}


if __name__ == "__main__":
    from hops.experiment import Reporter

    print(train(0.02, Reporter()))
