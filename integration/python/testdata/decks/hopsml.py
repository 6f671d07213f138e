# Snippets of the decks about HopsML, as scripts: nothing guards the searches.
from hops import experiment, tflauncher, util

experiment.defaults.update(executors=2, memory="192MiB")


def train(learning_rate, dropout):
    return {"accuracy": learning_rate * dropout}


def run(lr, dropout):
    from hops import hdfs
    hdfs.dump("%s %s" % (lr, dropout), "Logs/%s-%s.txt" % (lr, dropout))


def alone():
    return {"accuracy": 0.5}


grid = {"learning_rate": [0.1, 0.2], "dropout": [3, 5]}
args_dict = {"learning_rate": [0.001, 0.0001, 0.0005], "dropout": [0.45, 0.7]}
try:
    experiment.launch(train, args_dict)
except ValueError as e:
    print("HINT", e)

logdir, best_param, return_dict = experiment.grid_search(train, grid, direction="max", versioned_resources=[__file__], optimization_key="accuracy", project="deck")
print("GRID", sorted(best_param.items()), return_dict["accuracy"])

from hops import hdfs
run_dir = logdir.rsplit("/", 1)[0]
print("KEPT", hdfs.ls(run_dir + "/versioned_resources") == [run_dir + "/versioned_resources/hopsml.py"], hdfs.exists(run_dir + "/.summary.json"))

logdir, best_param, return_dict = experiment.random_search(train, {"learning_rate": [0.1, 0.3], "dropout": [1, 4]}, direction="MIN", samples=4,
                                                           optimization_key="accuracy", quiet=True, project="deck")
print("RANDOM", isinstance(best_param["dropout"], int), 0.1 <= best_param["learning_rate"] <= 0.3, set(return_dict) == {"accuracy"})

logdir, returned = experiment.launch(map_fun=alone, name="alone", local_logdir=True, metric_key="accuracy", quiet=True, project="deck")
print("LAUNCH", returned)

logdir = tflauncher.launch(None, run, util.grid_params({"lr": [1, 2], "dropout": [3]}), quiet=True, project="deck")
print("TFLAUNCHER", [hdfs.load("/Projects/deck/Logs/%d-3.txt" % n) if hdfs.exists("/Projects/deck/Logs/%d-3.txt" % n) else None for n in (1, 2)])
