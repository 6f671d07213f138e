"""TensorFlowOnSpark's example, with lists in place of RDDs: two workers are fed, train together, and a second cluster infers."""
from tensorflowonspark import TFCluster, TFNode


def train_fun(args, ctx):
    import tensorflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        w = tf.Variable(0.0)
    feed = TFNode.DataFeed(ctx)
    loss = 0.0

    @tf.function
    def step(x, y):
        def one(x, y):
            g = tf.reduce_mean(2 * (w * x - y) * x)
            g = tf.distribute.get_replica_context().all_reduce("mean", g)
            w.assign_sub(args["lr"] * g)
            return tf.reduce_mean((w * x - y) ** 2)
        return strategy.run(one, args=(x, y))
    for _ in range(args["steps"]):
        rows = feed.next_batch(8)
        x, y = tf.constant([float(r[0]) for r in rows]), tf.constant([float(r[1]) for r in rows])
        loss = float(step(x, y))
    while not feed.should_stop():
        feed.next_batch(8)
    return {"metric": float(w.numpy()), "loss": loss}


def infer_fun(args, ctx):
    feed = TFNode.DataFeed(ctx, train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(8)
        if batch:
            feed.batch_results([3 * x for x in batch])


rows = [(x / 16, 3 * x / 16) for x in range(16)]
cluster = TFCluster.run(None, train_fun, {"lr": 0.5, "steps": 20}, 2, input_mode=TFCluster.InputMode.SPARK, memory="3GiB")
cluster.train([rows] * 20)
directory = cluster.shutdown()
import json
from hops import hdfs

w = json.loads(hdfs.load(directory + "/result.json"))["best_val"]
assert abs(w - 3) < 0.1, w
cluster = TFCluster.run(None, infer_fun, {}, 1, input_mode=TFCluster.InputMode.SPARK)
assert cluster.inference([[1, 2], [3]]) == [3, 6, 9]
cluster.shutdown()
print("OK tensorflow_on_spark", round(w, 3))
