# Maggy 1.x: a configuration as second argument; the same function here, and in a search with model and dataset.
from maggy import OptimizationConfig, Searchspace
from maggy.config import BaseConfig, HyperparameterOptConfig
from maggy.experiment import experiment

common = dict(executors=2, memory="192MiB", quiet=True, project="deck")


class Net:
    def __init__(self, units):
        self.units = units

    def fit(self, data):
        return self.units * sum(data)


def train(model, dataset, hparams, reporter):
    net = model(hparams["units"])
    score = net.fit(dataset)
    reporter.broadcast(score)
    return score


def laptop(model_gen, data_gen, dist_strategy):
    with dist_strategy.scope():
        return model_gen(3).fit(data_gen)


dataset = [1, 2, 3]
config = OptimizationConfig(num_trials=3, optimizer="randomsearch", searchspace=Searchspace(units=("INTEGER", [1, 9])), direction="max", model=Net, dataset=dataset,
                            es_policy="none", **common)
result = experiment.lagom(train, config)
print("OBLIVIOUS", result["best_val"] == 6 * result["best_config"]["units"], OptimizationConfig is HyperparameterOptConfig)

result = experiment.lagom(train, BaseConfig(model=Net, dataset=dataset, hparams={"units": 7}, **common))
print("BASE", result["best_outputs"]["metric"])

from hops import experiment as hopsml
print("HERE", hopsml.local(laptop, model=Net, dataset=dataset), hopsml.local(train, {"units": 2}, model=Net, dataset=dataset))
