"""LOCO over layers of a Keras model on digits: a layer that changes shapes, a group, a prefix, a functional model with a branch that goes."""
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

from maggy import experiment
from maggy.ablation import AblationStudy
from maggy.config import AblationConfig


def base_model():
    import keras
    return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(64, activation="relu", name="dense_one"), keras.layers.Dense(32, activation="relu", name="dense_two"),
                             keras.layers.Dropout(0.2, name="dropout"), keras.layers.Dense(10, activation="softmax", name="last")])


def functional_model():
    import keras
    x = keras.layers.Input((64,), name="pixels")
    a = keras.layers.Dense(32, activation="relu", name="left")(x)
    b = keras.layers.Dense(32, activation="relu", name="right")(a)
    y = keras.layers.Dense(10, activation="softmax", name="last")(keras.layers.Concatenate(name="both")([a, b]))
    return keras.Model(x, y)


def dataset():
    from sklearn.datasets import load_digits
    digits = load_digits()
    return digits.data / 16, digits.target


def train(dataset_function, model_function, reporter, seed):
    import keras
    keras.utils.set_random_seed(seed % (1 << 31))
    x, y = dataset_function()
    model = model_function()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    from maggy.callbacks import KerasEpochEnd
    history = model.fit(x[:1200], y[:1200], validation_data=(x[1200:], y[1200:]), epochs=4, verbose=0, callbacks=[KerasEpochEnd(reporter, "val_accuracy")])
    return history.history["val_accuracy"][-1]


study = AblationStudy("digits", 1, "target", dataset_generator=dataset)
study.model.set_base_model_generator(base_model)
study.model.layers.include("dense_two", "dropout")
study.model.layers.include_groups(["dense_two", "dropout"], prefix="dense")
study.model.add_custom_model_generator(functional_model, "functional")
result = experiment.lagom(train, AblationConfig(study, repeats=2, executors=2, env={"KERAS_BACKEND": "jax"}, memory="3GiB", report_timeout="-1s"))
means = {r["component"]: r["mean"] for r in result["ablation"]}
assert len(means) == 6 and all(m is not None and m > 0.3 for m in means.values()), result["ablation"]
print("OK ablation_keras", {k: round(v, 3) for k, v in means.items()})
