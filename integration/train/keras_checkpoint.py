"""A Keras model on TensorFlow that is saved each epoch; the process of the trial dies in the middle, and the next attempt goes on with weights and optimizer as
they were. A model of another shape is told from it."""
import os

from hops import experiment

EPOCHS = 6


def net(units):
    import keras
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def train(units, reporter):
    import numpy
    from hops import checkpoint
    random = numpy.random.default_rng(1)
    x = random.normal(size=(256, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model, done = net(units), 0
    found = checkpoint.load()
    if found:
        done, model = found
        same = net(units)
        assert checkpoint.restore(same) == done
        for a, b in zip(model.get_weights(), same.get_weights()):
            assert (a == b).all()
        assert int(model.optimizer.iterations) == 8 * done, (int(model.optimizer.iterations), done)
        try:
            checkpoint.restore(net(units + 1))
            raise AssertionError("a model of another shape took the weights")
        except checkpoint.CheckpointMismatch as e:
            print("MISMATCH", e)
    for epoch in range(done + 1, EPOCHS + 1):
        model.fit(x, y, batch_size=32, verbose=0)
        loss = float(model.evaluate(x, y, verbose=0))
        reporter.broadcast(loss, epoch)
        checkpoint.save(model, epoch)
        if not found and epoch == EPOCHS // 2:
            os._exit(9)
    return {"loss": loss, "began": done}


if __name__ == "__main__":
    result = experiment.search(train, {"optimizer": {"type": "none"}, "configurations": [{"units": 16}], "metric": "loss", "direction": "min"}, name="keras-checkpoint",
                               executors=1, memory="3GiB", executor_mode="spawn", env={"KERAS_BACKEND": "tensorflow"}, quiet=True)
    trial = result["trials"][0]
    assert result["best_outputs"]["began"] == EPOCHS // 2 and trial["attempt"] == 2, (result["best_outputs"], trial)
    print("RESULT went on after epoch %d, loss %.4f" % (EPOCHS // 2, result["best_val"]))
