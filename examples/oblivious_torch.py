"""One function in four contexts: here, in a search, in an ablation study, in a gang of two ranks."""
from maggy import Searchspace, experiment
from maggy.ablation import AblationStudy
from maggy.config import AblationConfig, HyperparameterOptConfig, TorchDistributedConfig


def net(hidden=32):
    import torch
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def square():
    import torch
    torch.manual_seed(1)
    model = torch.nn.Sequential()
    for name, layer in (("first", torch.nn.Linear(64, 32)), ("middle", torch.nn.Linear(32, 32)), ("last", torch.nn.Linear(32, 10))):
        model.add_module(name, layer)
    return model


def digits():
    from sklearn.datasets import load_digits
    found = load_digits()
    return found.data / 16, found.target


def train(model, dataset, reporter, hparams):
    import torch
    from hops import dist
    torch.set_num_threads(1)
    context = dist.context()
    x, y = dataset()
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    network = model(hparams["hidden"]) if "hidden" in hparams else model()
    optimizer = torch.optim.Adam(network.parameters(), lr=hparams.get("lr", 0.01))
    for epoch in range(1, 6):
        for at in range(context.rank * 64, 1152, 64 * context.world):  # as many steps on each rank
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[at:at + 64]), y[at:at + 64]).backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = float((network(x[1152:]).argmax(1) == y[1152:]).float().mean())
        reporter.broadcast(accuracy, epoch)
    return accuracy


from hops import experiment as hopsml

here = hopsml.local(train, {"hidden": 16}, model=net, dataset=digits)
common = dict(executors=2, memory="3GiB")
search = experiment.lagom(train, HyperparameterOptConfig(4, "randomsearch", Searchspace(hidden=("INTEGER", [8, 64]), lr=("DOUBLE", [1e-3, 1e-1], "log")), model=net, dataset=digits,
                                                         es_policy="none", **common))
study = AblationStudy(dataset_generator=digits)
study.model.set_base_model_generator(square)
study.model.layers.include("middle")
ablated = experiment.lagom(train, AblationConfig(study, **common))
gang = experiment.lagom(train, TorchDistributedConfig(module=net, dataset=digits, hparams={"hidden": 16}, **common))
values = [here, search["best_val"], ablated["best_val"], gang["best_outputs"]["metric"]]
assert all(v > 0.6 for v in values) and len(ablated["ablation"]) == 2, (values, ablated["ablation"])
print("OK oblivious_torch", [round(v, 3) for v in values])
