"""A training function with what it is given beside hyperparameters: a model, a dataset, what an ablation leaves out, or a
framework's gang. The same function runs in all of these places ("oblivious").

On the submitting side a Function names objects; in an executor it is made again from a module that pack_all writes, __hops_entry__.
To the executor it is a function like any other, whose signature has what is left to be bound by name.
"""
import inspect
import json
import os
import sys

# Names by which functions ask for the model and the data, in Maggy 1.x, 0.x and the talks about it.
MODEL = ("model", "module", "model_function", "model_generator", "model_gen")
DATASET = ("dataset", "dataset_function", "dataset_generator", "data_gen")
STRATEGY = "dist_strategy"


class Function:
    """fn, called with given values by name beside those that the trial has. how is "" or the name of a step that is done first: "ablation",
    "torch" or "tensorflow"."""

    def __init__(self, fn, given=None, how=""):
        self.fn, self.given, self.how = fn, dict(given or {}), how
        self.__name__ = self.__qualname__ = getattr(fn, "__name__", "function")
        self.__module__ = getattr(fn, "__module__", None)
        self.hops_every_role = getattr(fn, "hops_every_role", False)  # hops.dist

    def parts(self):
        """The functions and classes that have to travel."""
        found = [self.fn]

        def walk(value):
            if isinstance(value, dict):
                for v in value.values():
                    walk(v)
            elif isinstance(value, (list, tuple)):
                for v in value:
                    walk(v)
            elif (inspect.isfunction(value) or isinstance(value, type)) and not any(value is p for p in found) and _global_name(value) is None:
                found.append(value)

        walk(self.given)
        return found

    def text(self, places, files):
        """The source of the module that makes this again. places has the entry of each part by its id; what has no name and no JSON goes into
        files as a pickle."""
        rest = []

        def refer(value):
            if id(value) in places:
                return {"entry": places[id(value)]}
            try:
                if json.loads(json.dumps(value, allow_nan=False)) == value and not isinstance(value, tuple):
                    return {"value": value}
            except (TypeError, ValueError):
                pass
            name = _global_name(value)
            if name is not None:
                return {"entry": name}
            if isinstance(value, dict) and all(isinstance(k, str) for k in value):
                return {"dict": {k: refer(v) for k, v in value.items()}}
            if type(value) in (list, tuple):
                return {"list": [refer(v) for v in value], "tuple": isinstance(value, tuple)}
            rest.append(value)
            return {"pickled": len(rest) - 1}

        given = refer(self.given)
        if rest:
            from hops import _code
            pickled, _ = _code._pickled("%s is given %s, which neither JSON nor a name of the script has" % (self.__name__, type(rest[0]).__name__), {"wrapped.pkl": rest})
            files.update(pickled)
        return "from hops import _wrapped\nfunction = _wrapped.made(%r, %r, %r, __file__)\n" % (places[id(self.fn)], json.dumps(given), self.how)

    @property
    def __signature__(self):
        names = inspect.signature(self.fn).parameters
        mine = self._names(names)
        kept = [p for n, p in names.items() if n not in mine and p.kind not in (p.VAR_KEYWORD,)]
        extra = [n for n in self._wanted() if n not in names or n in mine]
        kept = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in kept]
        kept += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in extra]
        kept += [p for p in names.values() if p.kind is p.VAR_KEYWORD]
        return inspect.Signature(kept)

    def _wanted(self):
        """Parameters that this needs of the trial, whether the function has them or not."""
        wanted = ["ablated_feature", "ablated_layer"] if self.how == "ablation" else []
        return wanted + (["hparams"] if "hparams" in self.given else [])

    def _names(self, parameters):
        """The function's parameters that this gives it."""
        mine = set()
        if "model" in self.given or self.how == "ablation":
            mine.update(n for n in MODEL if n in parameters)
        if "dataset" in self.given or self.how == "ablation":
            mine.update(n for n in DATASET if n in parameters)
        if STRATEGY in parameters:
            mine.add(STRATEGY)
        mine.update(n for n in self.given if n in parameters and n not in ("hparams", "local_logdir"))
        return mine

    def __call__(self, **bound):
        parameters = inspect.signature(self.fn).parameters
        model, dataset, strategy = self.given.get("model"), self.given.get("dataset"), None
        if self.how == "ablation":
            from maggy import ablation
            model, dataset = ablation.left_out(self.given, bound.get("ablated_feature"), bound.get("ablated_layer"))
        elif self.how == "torch":
            model = _distributed(model, {k: self.given[k] for k in ("mixed_precision", "zero_lvl") if self.given.get(k)})
        elif self.how == "tensorflow":
            model, dataset, strategy = _tensorflow(model, dataset, self.given)
        if self.given.get("local_logdir"):
            from hops import _run
            _run.current().local_logdir = True
        if "hparams" in self.given:
            bound["hparams"] = {**self.given["hparams"], **(bound.get("hparams") or {})}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            bound = {n: v for n, v in bound.items() if n in parameters}
        for name in self._names(parameters):
            bound[name] = model if name in MODEL else dataset if name in DATASET else self.given.get(name)
        if STRATEGY in parameters:
            bound[STRATEGY] = strategy or _strategy()
        return self.fn(**bound)


def _global_name(value):
    """The name that an object has in the script or in a module beside it, as an entry; None if it has none. Executors import these, and so
    have an object of that name too."""
    from hops import _code
    if isinstance(value, type) or inspect.isfunction(value) or isinstance(value, (str, int, float, bool, type(None))):
        return None
    main = sys.modules.get("__main__")
    if main is None or not _code._script() or _code._interactive():
        return None
    for name, found in list(vars(main).items()):
        if found is value and not name.startswith("__"):
            return "%s:%s" % (_code.MAIN, name)
    return None


def made(entry, given, how, file):
    """The function again, in an executor: from the entry that it has, and the JSON of Function.text."""
    folder = os.path.dirname(file)
    pickles = []

    def value(said):
        kind, what = next(iter(said.items()))
        if kind == "entry":
            return _find(what)
        if kind == "dict":
            return {k: value(v) for k, v in what.items()}
        if kind == "list":
            found = [value(v) for v in what]
            return tuple(found) if said["tuple"] else found
        if kind == "pickled":
            if not pickles:
                import cloudpickle
                with open(os.path.join(folder, "wrapped.pkl"), "rb") as f:
                    pickles.append(cloudpickle.load(f))
            return pickles[0][what]
        return what

    return Function(_find(entry), value(json.loads(given)), how)


def _find(entry):
    """What an entry names. Its module may be the script, whose import ends at the first search."""
    from hops import _trial
    _trial._import(entry.partition(":")[0])
    return _trial.find(entry)


def script(name, arguments=()):
    """A function that runs a file of the code artifact as a program."""
    def program():
        import runpy
        path = os.path.join(os.path.dirname(os.path.abspath(sys.modules["__hops_entry__"].__file__)), name)
        before, sys.argv = sys.argv, [path, *arguments]
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as e:
            if e.code not in (None, 0):
                raise RuntimeError("%s ended with status %s" % (name, e.code)) from None
        finally:
            sys.argv = before
    return program


def _distributed(model, options):
    """A class or function whose models are those of a rank: hops.dist wraps them, with options of Context.wrap."""
    if model is None:
        return None
    from hops import dist
    context = dist.context()
    if not callable(model) or hasattr(model, "parameters") and not isinstance(model, type):
        return context.wrap(model, **options)

    def wrapped(*args, **kwargs):
        return context.wrap(model(*args, **kwargs), **options)

    wrapped.__name__ = getattr(model, "__name__", "model")
    return wrapped


def _strategy():
    """What dist_strategy is where nothing is distributed: TensorFlow's default, which changes nothing."""
    try:
        import tensorflow as tf
    except ImportError:
        return Local()
    return tf.distribute.get_strategy()


class Local:
    """A strategy for functions that do not use TensorFlow: one replica, an empty scope."""

    num_replicas_in_sync = 1

    def scope(self):
        import contextlib
        return contextlib.nullcontext()


def _tensorflow(model, dataset, given):
    """Model, data and strategy of a member of a TensorFlow gang, or of one process."""
    try:
        import tensorflow as tf
    except ImportError:
        raise ImportError("TensorFlow is not installed for %s on the nodes: pip install tensorflow, or name another interpreter (python=...)" % sys.executable) from None
    if given.get("mixed_precision"):
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if os.environ.get("TF_CONFIG") else tf.distribute.MirroredStrategy()
    process = given.get("process_data")
    if process is not None and dataset is not None:
        dataset = process(*dataset) if isinstance(dataset, (list, tuple)) else process(dataset)
    if callable(model):
        make = model

        def model(*args, **kwargs):
            with strategy.scope():
                return make(*args, **kwargs)
    return model, dataset, strategy
