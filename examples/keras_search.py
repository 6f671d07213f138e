"""A random search over a Keras model, with Maggy's callback and the median rule, on scikit-learn's digits.

    python examples/keras_search.py

Needs tensorflow (or another backend of Keras 3) and scikit-learn on the machines of the executors.
"""
from maggy import Searchspace, experiment


def train(lr, units, dropout, reporter, seed):
    import keras
    from sklearn.datasets import load_digits

    from maggy.callbacks import KerasEpochEnd

    keras.utils.set_random_seed(seed % 2**31)
    images, digits = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    model = keras.Sequential([
        keras.Input((64,)), keras.layers.Dense(units, activation="relu"), keras.layers.Dropout(dropout), keras.layers.Dense(10, activation="softmax")])
    model.compile(keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(images[:1200], digits[:1200], validation_data=(images[1200:], digits[1200:]), epochs=6, batch_size=64, verbose=0,
                        callbacks=[KerasEpochEnd(reporter, metric="val_accuracy")])
    return history.history["val_accuracy"][-1]


space = Searchspace(lr=("DOUBLE", [0.0003, 0.1], "log"), units=("INTEGER", [8, 64]), dropout=("DOUBLE", [0.0, 0.6]))
result = experiment.lagom(train, searchspace=space, optimizer="randomsearch", num_trials=8, direction="max", es_policy="median", es_min=3,
                          name="digits-keras", executors=2, memory="3GiB", executor_mode="spawn")
print("best accuracy %.4f with %s" % (result["best_val"], result["best_config"]))
print("RESULT %d trials, %d stopped early, best accuracy %.3f" % (result["num_trials"], result["early_stopped"], result["best_val"]))
