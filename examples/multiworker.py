"""Training with MultiWorkerMirroredStrategy in a gang, and with TensorFlow's default strategy alone: `python multiworker.py`. fit() is that of
Keras 2 (tf_keras): Keras 3 does not know the strategy."""
import numpy
import tensorflow as tf

from hops import dist


def train(lr, reporter, epochs=5):
    strategy = dist.context().strategy()
    numpy.random.seed(1)
    x = numpy.random.randn(512, 16).astype("float32")
    y = x.sum(1, keepdims=True)
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(32, activation="relu", input_shape=(16,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(lr), "mse")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512, seed=1).batch(64).repeat()

    class Report(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            reporter.broadcast(logs["loss"], epoch + 1)

    history = model.fit(data, epochs=int(epochs), steps_per_epoch=8, verbose=0, callbacks=[Report()])
    print("replicas %d, loss %.6f" % (strategy.num_replicas_in_sync, history.history["loss"][-1]))
    return history.history["loss"][-1]


if __name__ == "__main__":
    from hops.experiment import Reporter

    print("loss %.6f" % train(0.05, Reporter()))
