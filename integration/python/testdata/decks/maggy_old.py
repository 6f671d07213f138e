# Maggy 0.x, as in the decks.
import maggy
from maggy import Searchspace, experiment
from maggy.randomsearch import RandomSearch

common = dict(executors=2, memory="192MiB", quiet=True, project="deck")
sp = Searchspace(kernel=("INTEGER", [2, 8]), pool=("INTEGER", [2, 8]))
sp.add("dropout", ("DOUBLE", [0.01, 0.99]))


def train_fn(kernel, pool, dropout, reporter):
    for step in range(3):
        reporter.broadcast(metric=kernel * pool * dropout * step)
    return kernel * pool * dropout


result = experiment.lagom(train_fn, searchspace=sp, optimizer="randomsearch", direction="max", num_trials=3, name="MNIST", hb_interval=1, es_interval=5, es_min=5, **common)
print("LAGOM", sorted(result)[:3], result["num_trials"], set(result["best_config"]) == {"kernel", "pool", "dropout"})
missing = {"best_id", "best_val", "best_config", "worst_id", "worst_val", "worst_config", "avg", "metric_list", "num_trials", "early_stopped", "num_epochs",
           "trial_id"} - set(result)
print("KEYS", sorted(missing))

result = maggy.launch(train_fn, sp, RandomSearch(), "min", 2, "old", **common)
print("LAUNCH", result["num_trials"], result["best_val"] <= result["worst_val"])

result = experiment.lagom(map_fun=train_fn, searchspace=sp, optimizer=RandomSearch, num_trials=2, experiment_type="optimization", es_policy="none", **common)
print("KEYWORDS", result["num_trials"])
