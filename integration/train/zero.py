"""One function in gangs of two ranks by each of zero_lvl: they train the same model, in shares, and its checkpoint fits one that is whole."""
from maggy import experiment
from maggy.config import TorchDistributedConfig

LEVELS = (0, 2, 3)


def net():
    import torch
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def train(model, reporter, level, mixed):
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
    from hops import checkpoint, dist
    torch.set_num_threads(1)
    context, network = dist.context(), model()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(1, 9):
        torch.manual_seed(100 * step + context.rank)
        out = network(torch.randn(16, 64))
        assert out.dtype == torch.float32, out.dtype
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(out, torch.randint(10, (16,))).backward()
        optimizer.step()
    held = sum(getattr(p, "_local_tensor", p).numel() for p in network.parameters())
    state = network.state_dict()
    if level:
        for shared in (network, {"optimizer": optimizer}, [optimizer.state_dict()]):
            try:
                checkpoint.save(shared, 1)
                raise AssertionError("what is in shares was saved by one rank")
            except ValueError as e:
                assert "every rank calls" in str(e), e
    whole = get_optimizer_state_dict(network, optimizer, options=StateDictOptions(full_state_dict=True))
    checkpoint.save({"model": state, "optimizer": whole}, 1)
    alone = net()
    alone.load_state_dict(state)
    again = model()
    again.load_state_dict(state)
    assert all(torch.equal(x, y) for x, y in zip(again.state_dict().values(), state.values()))
    total = sum(x.double().abs().sum().item() for x in state.values())
    reporter.broadcast(total, 1)
    return {"metric": total, "held": held, "whole": sum(p.numel() for p in alone.parameters())}


sums, held = {}, {}
for level, mixed in [(level, False) for level in LEVELS] + [(3, True)]:
    found = experiment.lagom(train, TorchDistributedConfig(module=net, hparams={"level": level, "mixed": mixed}, zero_lvl=level, mixed_precision=mixed, executors=2, memory="3GiB"))
    out = found["best_outputs"]
    sums[level, mixed] = out["metric"]
    assert out["held"] == out["whole"] if level == 0 else out["held"] < 0.6 * out["whole"], out
exact = sums[0, False]
assert all(abs(sums[level, False] - exact) < 1e-3 for level in LEVELS), sums
assert 1e-6 < abs(sums[3, True] - exact) < 0.01 * exact, sums
print("OK zero", sums)
