# TensorFlowOnSpark's calls: nodes that are fed.
from tensorflowonspark import TFCluster, TFNode


def main_fun(args, ctx):
    feed = TFNode.DataFeed(ctx, train_mode=args.train)
    total = 0
    while not feed.should_stop():
        batch = feed.next_batch(4)
        if args.train:
            total += sum(batch)
        elif batch:
            feed.batch_results([x * x for x in batch])
    return {"metric": total}


import argparse
import json

from hops import hdfs

directories = []
for train in (True, False):
    cluster = TFCluster.run(None, main_fun, argparse.Namespace(train=train), 1, input_mode=TFCluster.InputMode.SPARK, memory="192MiB", project="deck")
    if train:
        cluster.train([range(10), range(10, 20)], num_epochs=2)
    else:
        print("INFERENCE", cluster.inference([[1, 2, 3, 4, 5], [6]]))
    directories.append(cluster.shutdown())
print("TRAIN", json.loads(hdfs.load(directories[0] + "/result.json"))["best_val"])
