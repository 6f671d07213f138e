"""A script as the decks have it: nothing guards the search, and its result is used below."""
from hops import experiment

experiment.defaults.update(executors=2, memory="256MiB")


def train_fn(learning_rate, dropout):
    return {"accuracy": learning_rate * dropout}


args_dict = {"learning_rate": [1, 2], "dropout": [3, 5]}
directory, config, outputs = experiment.grid_search(train_fn, args_dict, direction="max", optimization_key="accuracy", project="deck")
print("BEST", sorted(config.items()), outputs["accuracy"])
