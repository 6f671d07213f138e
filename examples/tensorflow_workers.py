"""One Keras model trained by two workers with TensorFlow's MultiWorkerMirroredStrategy, through HopsML's call.

    python examples/tensorflow_workers.py

Needs tensorflow and tf-keras: `fit` of Keras 3 does not know that strategy.
"""
from hops import experiment


def train():
    import os

    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    print("%d workers" % workers)
    tf.keras.utils.set_random_seed(1)
    x = tf.random.stateless_normal((512, 8), seed=(1, 2))
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(32 * workers)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.05), "mse")
    losses = model.fit(data, epochs=5, steps_per_epoch=16, verbose=0).history["loss"]
    return {"loss": losses[-1], "first": losses[0], "workers": workers}


logdir, outputs = experiment.mirrored(train, name="workers", metric_key="loss", executors=2, memory="3GiB")
assert outputs["workers"] == 2 and outputs["loss"] < outputs["first"], outputs
print("RESULT %d workers, loss %.4f after %.4f" % (outputs["workers"], outputs["loss"], outputs["first"]))
