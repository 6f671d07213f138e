"""Ablation studies: which part of a data set or of a model is worth what, by leaving one out at a time (LOCO).

    study = AblationStudy("titanic", 1, "survived", dataset_generator=make_dataset)
    study.features.include("pclass", "sex")
    study.model.set_base_model_generator(make_model)
    study.model.layers.include("dense_two")
    study.model.layers.include_groups(["dense_two", "dense_three"], prefix="conv")
    experiment.lagom(train, AblationConfig(study))

There is one trial without anything left out, and one for each feature, layer, group of layers and custom model; with repeats several
of each, from which the result has means and confidence intervals. Layers are Keras' by name, or submodules of a PyTorch model.
"""
import copy
import csv
import inspect
import io
import json
import math
import sys

from maggy.trial import Trial

NONE = "None"  # as Maggy writes it
CUSTOM = "Custom model: "
PREFIX = "Layers prefixed "


class Features:
    """The features that are left out, each in its turn."""

    def __init__(self):
        self.included_features = []

    def include(self, *features):
        """Add features by name; lists of names are taken too."""
        for name in _names(features, "a feature"):
            if name not in self.included_features:
                self.included_features.append(name)

    def exclude(self, *features):
        """Take features away that were included. ValueError: one was not."""
        for name in _names(features, "a feature"):
            if name not in self.included_features:
                raise ValueError("the feature %r is not included; there are %s" % (name, ", ".join(self.included_features) or "none"))
            self.included_features.remove(name)

    def list_all(self):
        """Print the included features."""
        for name in self.included_features:
            print(name)


class Layers:
    """Layers and groups of layers that are left out, each in its turn."""

    def __init__(self):
        self.included_layers, self.included_groups = [], []

    def include(self, *layers):
        """Add layers by name, each to be left out alone."""
        for name in _names(layers, "a layer"):
            if name not in self.included_layers:
                self.included_layers.append(name)

    def exclude(self, *layers):
        """Take layers away that were included. ValueError: one was not."""
        for name in _names(layers, "a layer"):
            if name not in self.included_layers:
                raise ValueError("the layer %r is not included; there are %s" % (name, ", ".join(self.included_layers) or "none"))
            self.included_layers.remove(name)

    @staticmethod
    def _groups(groups, prefix):
        found = []
        for group in groups:
            if not isinstance(group, (list, tuple, set)) or len(group) < 2 or not all(isinstance(n, str) for n in group):
                raise ValueError("a group is a list of at least two names of layers, not %r" % (group,))
            found.append(sorted(group) if isinstance(group, set) else list(group))
        for one in [prefix] if isinstance(prefix, str) else prefix or []:
            if not one or not isinstance(one, str):
                raise ValueError("prefix is %r, not the beginning of a layer's name" % (one,))
            found.append(one)
        if not found:
            raise ValueError("name a group: a list of layers, or prefix=")
        return found

    def include_groups(self, *groups, prefix=None):
        """Add groups of layers that are left out together: lists of names, or all layers whose name begins with prefix."""
        for group in self._groups(groups, prefix):
            if group not in self.included_groups:
                self.included_groups.append(group)

    def exclude_groups(self, *groups, prefix=None):
        """Take groups away that were included. ValueError: one was not."""
        for group in self._groups(groups, prefix):
            if group not in self.included_groups:
                raise ValueError("the group %r is not included" % (group,))
            self.included_groups.remove(group)

    def print_all(self):
        """Print what is included."""
        print("Included single layers: %s" % ", ".join(self.included_layers) if self.included_layers else "No single layers are included.")
        for group in self.included_groups:
            print("Included group: %s" % group_name(group))


class Model:
    """The model that parts are left out of."""

    def __init__(self):
        self.layers = Layers()
        self.base_model_generator = None
        self.custom_model_generators = []

    def set_base_model_generator(self, base_model_generator):
        """The function (or class) that makes the whole model; it is called without arguments."""
        self.base_model_generator = _callable(base_model_generator, "the base model generator")

    def add_custom_model_generator(self, custom_model_generator, model_identifier):
        """One more model to try, by the function that makes it and a name for people."""
        if any(name == model_identifier for _, name in self.custom_model_generators):
            raise ValueError("there is a custom model %r already" % (model_identifier,))
        self.custom_model_generators.append((_callable(custom_model_generator, "a custom model generator"), str(model_identifier)))


class AblationStudy:
    """What is to be left out. The data come from dataset_generator, a function which the training function gets as dataset_function; if it
    has a parameter ablated_feature it is told the feature (or None) and leaves it out itself, otherwise the feature is taken out of what it returns:
    a dict of columns, a list of dicts, or a DataFrame. Without a generator they are the file <training_dataset_name>_<training_dataset_version>.csv of
    the project's Training_Datasets, as a dict of columns."""

    def __init__(self, training_dataset_name=None, training_dataset_version=1, label_name=None, dataset_generator=None, **kwargs):
        if kwargs:
            raise TypeError("unknown option %s of AblationStudy" % ", ".join(sorted(kwargs)))
        self.hops_training_dataset_name, self.hops_training_dataset_version = training_dataset_name, training_dataset_version
        self.label_name = label_name
        self.features, self.model = Features(), Model()
        self.custom_dataset_generator = None
        if dataset_generator is not None:
            self.set_dataset_generator(dataset_generator)

    def set_dataset_generator(self, dataset_generator):
        self.custom_dataset_generator = _callable(dataset_generator, "the dataset generator")

    def to_dict(self):
        """What is left out, for people."""
        return {"training_dataset_name": self.hops_training_dataset_name, "training_dataset_version": self.hops_training_dataset_version,
                "label_name": self.label_name, "included_features": list(self.features.included_features),
                "included_layers": list(self.model.layers.included_layers), "included_groups": [group_name(g) for g in self.model.layers.included_groups],
                "custom_dataset_generator": self.custom_dataset_generator is not None,
                "custom_models": [name for _, name in self.model.custom_model_generators]}


class AbstractAblator:
    """Base of ablators written in Python. It runs where the study is submitted: initialize(), then get_trial() until that returns None. The params of each
    Trial have "ablated_feature" and "ablated_layer", texts for people, and "dataset_function" and "model_function", which the training function gets
    (they travel with the code)."""

    def __init__(self, ablation_study, final_store=None):
        self.ablation_study, self.final_store = ablation_study, final_store if final_store is not None else []
        self.trial_buffer = []

    def get_number_of_trials(self):
        """How many trials there are, for the progress bar."""
        raise NotImplementedError

    def get_dataset_generator(self, ablated_feature, dataset_type="tfrecord"):
        """The function that makes the data without a feature."""
        raise NotImplementedError

    def get_model_generator(self, ablated_layer):
        """The function that makes the model without a layer or a group of layers."""
        raise NotImplementedError

    def initialize(self):
        """Called once, before the first get_trial."""

    def get_trial(self, ablation_trial=None):
        """The next Trial, None when there is none any more."""
        return self.trial_buffer.pop(0) if self.trial_buffer else None

    def finalize_experiment(self, trials):
        """Called with the trials when all have ended."""


class LOCO(AbstractAblator):
    """Leave one component out: nothing first, then each feature, layer, group and custom model."""

    def get_number_of_trials(self):
        return len(self._components())

    def get_dataset_generator(self, ablated_feature=None, dataset_type="tfrecord"):
        return dataset_function(given(self.ablation_study), ablated_feature)

    def get_model_generator(self, ablated_layer=None):
        name = ablated_layer or NONE
        return model_function(given(self.ablation_study), name if isinstance(name, str) else group_name(name))

    def _components(self):
        s = self.ablation_study
        layers = s.model.layers
        found = [(NONE, NONE)] + [(f, NONE) for f in s.features.included_features]
        found += [(NONE, name) for name in layers.included_layers] + [(NONE, group_name(g)) for g in layers.included_groups]
        return found + [(NONE, CUSTOM + name) for _, name in s.model.custom_model_generators]

    def initialize(self):
        self.trial_buffer = [Trial({"ablated_feature": f, "ablated_layer": layer}, "ablation") for f, layer in self._components()]


def group_name(group):
    """A group of layers, a list or a prefix, as the results name it."""
    return PREFIX + group if isinstance(group, str) else json.dumps(list(group))


def _names(given_names, what):
    found = []
    for name in given_names:
        for one in name if isinstance(name, (list, tuple, set)) else [name]:
            if not isinstance(one, str) or not one:
                raise ValueError("%s is named by text, not by %r" % (what, one))
            found.append(one)
    return found


def _callable(fn, what):
    if not callable(fn):
        raise TypeError("%s is a function, not %r" % (what, fn))
    return fn


# -- in a trial

def given(study, model=None, dataset=None):
    """What a trial has to know of a study. model and dataset are those of the configuration: they count where the study names none."""
    return {"dataset_generator": study.custom_dataset_generator, "model_generator": study.model.base_model_generator or model,
            "custom": {CUSTOM + name: fn for fn, name in study.model.custom_model_generators}, "data": None if study.custom_dataset_generator else dataset,
            "name": study.hops_training_dataset_name, "version": study.hops_training_dataset_version, "label": study.label_name}


def left_out(what, feature, layer):
    """(model function, dataset function) of the trial that leaves these out."""
    if "ablator" in what:
        found = what["ablator"]["%s\0%s" % (feature, layer)]
        return found.get("model_function"), found.get("dataset_function")
    return model_function(what, layer or NONE), dataset_function(what, None if feature in (None, NONE) else feature)


def model_function(what, layer):
    """The function that makes the model without a layer, by the name that the results have for it."""
    if layer.startswith(CUSTOM):
        return what["custom"][layer]
    make = what["model_generator"]
    if make is None or layer == NONE:
        return make

    def without(*args, **kwargs):
        return remove_layers(make(*args, **kwargs), layer)
    return without


def dataset_function(what, feature):
    """The function that makes the data without a feature."""
    make, data = what["dataset_generator"], what["data"]
    if make is None and data is None and what["name"] is None:
        return None
    told = make is not None and "ablated_feature" in inspect.signature(make).parameters

    def without(*args, **kwargs):
        if told:
            return make(*args, ablated_feature=feature, **kwargs)
        found = make(*args, **kwargs) if make else copy.copy(data) if data is not None else stored(what)
        return found if feature is None else remove_feature(found, feature)
    return without


def stored(what):
    """A training data set of the project, as a dict of columns."""
    from hops import hdfs
    path = "Training_Datasets/%s_%s.csv" % (what["name"], what["version"])
    try:
        text = hdfs.load(path).decode("utf-8")
    except FileNotFoundError:
        raise FileNotFoundError("the training data set %s is not there; put it there as CSV with a line of names, or give the study a dataset_generator" % hdfs.abs_path(path)) from None
    rows = list(csv.DictReader(io.StringIO(text)))
    return {name: [_value(row[name]) for row in rows] for name in (rows[0] if rows else {})}


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


def remove_feature(data, feature):
    """Data without a feature: a dict of columns, a list of dicts, a DataFrame, or a pair (features, labels) of which the first is one of these."""
    if isinstance(data, tuple) and data:
        return (remove_feature(data[0], feature), *data[1:])
    if isinstance(data, dict):
        if feature not in data:
            raise KeyError("the data have no feature %r; there are %s" % (feature, ", ".join(map(str, data))))
        return {k: v for k, v in data.items() if k != feature}
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        if feature not in data[0]:
            raise KeyError("the data have no feature %r; there are %s" % (feature, ", ".join(map(str, data[0]))))
        return [{k: v for k, v in row.items() if k != feature} for row in data]
    if hasattr(data, "drop") and hasattr(data, "columns"):
        return data.drop(columns=[feature])
    raise TypeError("a feature cannot be taken out of a %s: give the dataset generator a parameter ablated_feature, and leave it out there" % type(data).__name__)


def remove_layers(model, layer):
    """A model without a layer or a group of layers, as the results name them. Keras models are made anew, from their configuration; in PyTorch models
    submodules are replaced by torch.nn.Identity."""
    if hasattr(model, "named_modules"):
        return _torch(model, _chosen(layer, [n for n, _ in model.named_modules() if n]))
    if hasattr(model, "to_json") and hasattr(model, "layers"):
        return _keras(model, layer)
    raise TypeError("layers cannot be taken out of a %s: it is neither a Keras nor a PyTorch model" % type(model).__name__)


def _chosen(layer, names):
    """The names of layers that the name of a component stands for."""
    if layer.startswith(PREFIX):
        found = [n for n in names if n.startswith(layer[len(PREFIX):])]
    else:
        wanted = json.loads(layer) if layer.startswith("[") else [layer]
        found = [n for n in names if n in wanted]
        missing = [n for n in wanted if n not in names]
        if missing:
            raise ValueError("the model has no layer %s that can be left out; there are %s" % (", ".join(missing), ", ".join(names)))
    if not found:
        raise ValueError("the model has no layer whose name begins with %r; there are %s" % (layer[len(PREFIX):], ", ".join(names)))
    return found


def _torch(model, names):
    import torch
    for name in names:
        parent, _, last = name.rpartition(".")
        if not any(name.startswith(other + ".") for other in names):
            setattr(model.get_submodule(parent) if parent else model, last, torch.nn.Identity())
    return model


def _keras(model, layer):
    """A Keras model without layers, never its first or last. What Keras 3 keeps of shapes (build_config) does not fit any more and is dropped; in functional
    models the layers behind one that goes get its input."""
    text = json.loads(model.to_json())
    config = text["config"]
    layers = config["layers"]
    names = [_layer_name(one) for one in layers]
    gone = _chosen(layer, names[1:-1])
    inputs = {}
    for name in gone:
        one = layers[names.index(name)]
        if one.get("inbound_nodes"):
            found = _histories(one["inbound_nodes"])
            if len(found) != 1:
                raise ValueError("the layer %s has %d inputs, and what is behind it wants one: leave out another" % (name, len(found)))
            inputs[name] = found[0]
    config["layers"] = [one for one in layers if _layer_name(one) not in gone]
    if inputs:
        _rewire(config, inputs)
    config.pop("build_input_shape", None)
    text.pop("build_config", None)
    for one in config["layers"]:
        one.pop("build_config", None)
    module = type(model).__module__.split(".")[0]
    if module == "keras" or module == "tensorflow":
        import keras
    else:
        import tf_keras as keras
    return keras.models.model_from_json(json.dumps(text))


def _layer_name(one):
    return one.get("name") or one["config"]["name"]


def _histories(nodes):
    """[layer, node, tensor] of what a layer is fed with: Keras 3's keras_history, or the lists of Keras 2."""
    found = []

    def walk(value):
        if isinstance(value, dict):
            if "keras_history" in value:
                found.append(value["keras_history"])
            for v in value.values():
                walk(v)
        elif isinstance(value, list):
            if len(value) in (3, 4) and isinstance(value[0], str) and all(isinstance(v, int) for v in value[1:3]):
                if value not in found:
                    found.append(value[:3])
                return
            for v in value:
                walk(v)
    walk(nodes)
    unique = []
    for one in found:
        if one not in unique:
            unique.append(one)
    return unique


def _rewire(value, inputs):
    """Replace, in place, what comes from layers that are gone by what they were fed with."""
    if isinstance(value, dict):
        for v in value.values():
            _rewire(v, inputs)
    elif isinstance(value, list):
        if len(value) in (3, 4) and isinstance(value[0], str) and all(isinstance(v, int) for v in value[1:3]):
            while value[0] in inputs:
                value[:3] = inputs[value[0]]
            return
        for v in value:
            _rewire(v, inputs)


# -- results

# Student's t for a two-sided interval of 95 %, by degrees of freedom from 1.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080,
       2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def interval(values):
    """(mean, half of the 95 % confidence interval by Student's t); the second is None for fewer than two values."""
    mean = sum(values) / len(values)
    n = len(values)
    if n < 2:
        return mean, None
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    t = T95[n - 2] if n - 2 < len(T95) else 1.96 + 2.4 / (n - 1)
    return mean, t * deviation / math.sqrt(n)


class Table(list):
    """A row for each component: {"component", "trials", "mean", "ci", "effect"}. mean is that of the metric without the component, ci half of its 95 %
    confidence interval (None with one trial), effect the difference to the whole model and data."""

    def __str__(self):
        lines = [("component", "trials", "mean", "± 95 %", "effect")]
        for r in self:
            lines.append((r["component"], str(r["trials"]), *("-" if r[k] is None else ("%+.4g" if k == "effect" else "%.4g") % r[k] for k in ("mean", "ci", "effect"))))
        widths = [max(len(line[i]) for line in lines) for i in range(5)]
        return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))) for line in lines)

    def _repr_html_(self):
        import html
        rows = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape("-" if r[k] is None else str(r[k]) if k in ("component", "trials") else "%.4g" % r[k])
                                               for k in ("component", "trials", "mean", "ci", "effect")) for r in self)
        return "<table><tr><th>component</th><th>trials</th><th>mean</th><th>± 95 %%</th><th>effect</th></tr>%s</table>" % rows


def component(params):
    """What a trial left out, in one word."""
    found = [v for k, v in params.items() if k in ("ablated_feature", "ablated_layer") and v != NONE]
    return ", ".join(found) or NONE


def table(trials):
    """The Table of trials as result.json has them."""
    groups = {}
    for t in trials:
        values = groups.setdefault(component(t["params"]), [])
        if t.get("metric") is not None and t["state"] not in ("FAILED", "INVALID"):
            values.append(t["metric"])
    base = interval(groups[NONE])[0] if groups.get(NONE) else None
    rows = Table()
    for name, values in groups.items():
        mean, ci = interval(values) if values else (None, None)
        rows.append({"component": name, "trials": len(values), "mean": mean, "ci": ci,
                     "effect": None if mean is None or base is None or name == NONE else mean - base})
    return rows


# Maggy has the study, the ablators and LOCO in modules of their own, which are this one too.
ablator = loco = ablationstudy = sys.modules[__name__]
sys.modules.update({__name__ + name: ablator for name in (".ablator", ".ablator.abstractablator", ".ablator.loco", ".ablationstudy")})
