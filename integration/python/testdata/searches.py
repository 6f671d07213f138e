"""The calls of hops-util-py and Maggy, from a script, against a cluster. Ends with status 0 if everything is as promised."""
import json
import os

import helper  # a module beside the script travels with its functions
from hops import checkpoint, experiment, hdfs, tensorboard
from maggy import Searchspace, experiment as maggy
from maggy.config import HyperparameterOptConfig
from maggy.optimizer import Asha

experiment.defaults.update(executors=2, memory="256MiB")
project = {"project": "python", "quiet": True}


def product(a, b, reporter):
    for epoch in range(1, 4):
        reporter.broadcast(helper.product(a, b) * epoch, epoch)
        tensorboard.scalar("mine", a, epoch)
    reporter.log("a=%s b=%s" % (a, b))
    print("printed by", os.environ["HOPS_CONTAINER_ID"])
    return {"metric": 3 * helper.product(a, b), "a_again": a}


def checkpointed(x, reporter):
    found = checkpoint.load()
    step, total = found if found else (0, 0)
    while True:
        step, total = step + 1, total + x
        checkpoint.save(total, step)
        reporter.broadcast(total, step)


def alone():
    hdfs.dump("from a trial", "/Projects/python/alone.txt")
    return 42


def pair(n, word):
    hdfs.dump(word, "/Projects/python/pair-%d.txt" % n)
    return n


def grid():
    directory, config, outputs = experiment.grid_search(product, {"a": [1, 2], "b": [3, 5]}, name="grid", **project)
    assert config == {"a": 2, "b": 5}, config
    assert outputs["metric"] == 30 and outputs["a_again"] == 2, outputs
    names = sorted(os.path.basename(p) for p in hdfs.ls(directory))
    assert "output.log" in names or "tensorboard" in names, names
    text = b"".join(hdfs.load(p) for p in walk(directory) if p.endswith(".log")).decode()
    assert "a=2 b=5" in text and "printed by container_" in text, text
    events = [p for p in walk(directory) if "events.out.tfevents" in p]
    assert len(events) >= 2, events  # the executor's and the function's own
    print("EVENTS", json.dumps(events))


def walk(directory):
    for path in hdfs.ls(directory):
        if hdfs.isdir(path):
            yield from walk(path)
        else:
            yield path


def random():
    directory, config, outputs = experiment.random_search(product, {"a": [1, 9], "b": [0.5, 1.5]}, direction="min", samples=5, seed=3, name="random", **project)
    assert isinstance(config["a"], int) and 1 <= config["a"] <= 9 and 0.5 <= config["b"] <= 1.5, config
    run = os.path.dirname(directory.rstrip("/"))
    result = json.loads(hdfs.load(run + "/result.json"))
    assert len(result["trials"]) == 5 and all(t["state"] == "COMPLETED" for t in result["trials"]), result
    assert config == min((t["params"] for t in result["trials"]), key=lambda p: p["a"] * p["b"]), result


def launch():
    directory, outputs = experiment.launch(alone, name="once", **project)
    assert hdfs.load("/Projects/python/alone.txt") == b"from a trial"
    assert outputs == {"metric": 42} or outputs == 42, outputs
    assert hdfs.exists(directory)
    experiment.launch(pair, {"n": [1, 2], "word": ["one", "two"]}, name="twice", **project)
    assert hdfs.load("/Projects/python/pair-1.txt") == b"one" and hdfs.load("/Projects/python/pair-2.txt") == b"two"
    try:
        experiment.launch(pair, {"n": [1, 2], "word": ["one"]}, **project)
    except ValueError as e:
        assert "different lengths" in str(e), e
    else:
        raise AssertionError("lists of different lengths were taken")


def lagom():
    space = Searchspace(a=("INTEGER", [1, 4]), b=("DOUBLE", [0.1, 1.0], "log"))
    result = maggy.lagom(product, searchspace=space, optimizer="randomsearch", num_trials=4, es_policy="none", name="maggy", seed=1, **project)
    assert result["num_trials"] == 4 and result["best_val"] >= result["worst_val"], result
    assert set(result["best_config"]) == {"a", "b"}, result
    assert result["early_stopped"] == 0, result
    # Maggy 1.x, with checkpoints that trials are promoted from.
    config = HyperparameterOptConfig(6, Asha(reduction_factor=2, resource_min=1, resource_max=4), Searchspace(x=("INTEGER", [1, 100])), es_policy="none",
                                     name="asha", seed=5, **project)
    result = maggy.lagom(checkpointed, config)
    assert result["best_val"] == 4 * result["best_config"]["x"], result


if __name__ == "__main__":
    for part in (grid, random, launch, lagom):
        part()
        print("ok", part.__name__, flush=True)
