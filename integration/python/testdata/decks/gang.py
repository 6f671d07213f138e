# Distributed functions as the decks have them, without the framework: what they get is its environment.
import json
import os

from hops import allreduce, experiment, hdfs
from maggy.config import TorchDistributedConfig
from maggy.experiment import experiment as maggy

common = dict(memory="192MiB", quiet=True, project="deck")
experiment.defaults.update(executors=2)


def mirrored(**more):
    config = json.loads(os.environ["TF_CONFIG"])
    return {"members": sum(map(len, config["cluster"].values())), "who": config["task"]["type"] + str(config["task"]["index"])}


def averaged():
    # What hvd.init() does with its environment: each rank leaves something for the others, and waits for theirs.
    import http.client
    env = {k[8:]: v for k, v in os.environ.items() if k.startswith("HOROVOD_")}

    def call(method, key, value=None):
        c = http.client.HTTPConnection(env["GLOO_RENDEZVOUS_ADDR"], int(env["GLOO_RENDEZVOUS_PORT"]))
        c.request(method, "/local_%s/%s" % (env["HOSTNAME"], key), value)
        answer = c.getresponse()
        return answer.status, answer.read().decode()

    def others(first):
        for other in range(int(env["LOCAL_SIZE"])):
            status = 0
            while status != 200:
                status, value = call("GET", str(first + other))
            yield value

    rank, size = int(env["LOCAL_RANK"]), int(env["LOCAL_SIZE"])
    call("PUT", str(rank), env["RANK"])
    found = list(others(0))
    hdfs.dump("%s of %s, %s found" % (env["RANK"], env["SIZE"], found), "averaged/%s" % env["RANK"])
    call("PUT", str(size + rank), "done")
    if rank == 0:  # with it the rendezvous ends
        list(others(size))
    return len(found)


def alone():
    return {"cluster": int("TF_CONFIG" in os.environ)}


def train(hparams, lr):
    return {"metric": int(os.environ["WORLD_SIZE"]), "lr": lr, "same": hparams}


logdir, returned = experiment.mirrored(mirrored, metric_key="members", **common)
print("MIRRORED", returned["members"], logdir.startswith("/Projects/deck/Experiments/application_"))
print("ALLREDUCE", experiment.allreduce(averaged, framework="horovod", **common).startswith("/Projects/deck/Experiments/application_"),
      sorted(hdfs.load(p).decode() for p in hdfs.ls("/Projects/deck/averaged")))
print("ONE", experiment.mirrored(alone, executors=1, metric_key="cluster", **common)[1])
result = maggy.lagom(train, TorchDistributedConfig(hparams={"lr": 3}, **common))
print("TORCH", result["best_outputs"])

with open("/tmp/hops-notebook-%d.ipynb" % os.getpid(), "w") as f:
    json.dump({"cells": [{"cell_type": "code", "source": ["%matplotlib inline\n", "import json, os\n", "from hops import hdfs\n"]},
                         {"cell_type": "code", "source": ["task = json.loads(os.environ['TF_CONFIG'])['task']\n", "hdfs.dump('here', 'ranks/%s%d' % (task['type'], task['index']))"]}]}, f)
allreduce.launch(None, f.name, **common)
os.remove(f.name)
print("NOTEBOOK", len(hdfs.ls("/Projects/deck/ranks")))
