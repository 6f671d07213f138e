"""lagom: run a training function in every way that Maggy knows."""
import inspect
import sys

from hops import experiment as _experiment
from hops._wrapped import Function
from maggy import ablation as _ablation, earlystop as _earlystop
from maggy.config import AblationConfig, BaseConfig, DistributedConfig, HyperparameterOptConfig, LagomConfig
from maggy.optimizer import Asha, spec_of


def lagom(train_fn=None, config=None, name=None, experiment_type="optimization", searchspace=None, optimizer=None, direction="max", num_trials=1,
          ablation_study=None, ablator=None, optimization_key="metric", hb_interval=1, es_policy="median", es_interval=1, es_min=10,
          description="", map_fun=None, **options):
    """Run train_fn. config is a LagomConfig (Maggy 1.x); without one, the keywords of Maggy 0.x describe the search. The second argument may be a
    Searchspace too, as in Maggy 0.2; everything else goes by keyword, because its order was another one in every release.

    Returns Maggy's result: best_id, best_val, best_config, worst_id, worst_val, worst_config, avg, metric_list, num_trials, early_stopped, num_epochs, trial_id, and
    "directory"; of an ablation study also "ablation", a table. The function gets by name what it asks for: its hyperparameters or hparams, reporter, budget, and
    model and dataset where the configuration has them: the same function runs here, in a search, in an ablation study, and in a gang."""
    train_fn = train_fn or map_fun
    if not callable(train_fn):
        raise TypeError("the training function is missing: %r cannot be called" % (train_fn,))
    if hasattr(config, "names") and hasattr(config, "spec") and searchspace is None:
        config, searchspace = None, config
    if isinstance(config, type) and issubclass(config, LagomConfig):
        raise TypeError("the second argument of lagom is a config; this is the class %s: call it" % config.__name__)
    if config is not None and not isinstance(config, LagomConfig):
        raise TypeError("the second argument of lagom is a config; pass %r by keyword" % (config,))
    if experiment_type not in ("optimization", "ablation"):
        raise ValueError('experiment_type is %r; there are "optimization" and "ablation"' % (experiment_type,))
    if config is None:
        config = _old(name, experiment_type, searchspace, optimizer, direction, num_trials, ablation_study, ablator, optimization_key, hb_interval, es_policy,
                      es_interval, es_min, description, options)
    else:
        config.options = {**config.options, **options}
    if isinstance(config, AblationConfig):
        return _ablate(train_fn, config)
    if isinstance(config, DistributedConfig):
        return _gang(train_fn, config)
    if isinstance(config, HyperparameterOptConfig):
        return _search(train_fn, config)
    fn = _given(train_fn, config)
    return _experiment.search(fn, {"kind": "MAGGY", "optimizer": {"type": "none"}, **_values(config)}, config.name, config.description or None, **config.options)


def _old(name, experiment_type, searchspace, optimizer, direction, num_trials, study, ablator, key, hb_interval, es_policy, es_interval, es_min, description, options):
    """The configuration that the keywords of Maggy 0.x describe."""
    if experiment_type == "ablation" or study is not None:
        if study is None:
            raise TypeError("ablation_study is missing: a maggy.ablation.AblationStudy")
        return AblationConfig(study, ablator or "loco", direction, name or "ablationStudy", description, hb_interval, optimization_key=key, **options)
    if ablator is not None:
        raise TypeError("ablator is for ablation studies: experiment_type=\"ablation\", ablation_study=…")
    if searchspace is not None:
        return HyperparameterOptConfig(num_trials, optimizer or "randomsearch", searchspace, key, direction, es_interval, es_min, es_policy, name or "no-name",
                                       description, hb_interval, **options)
    if optimizer is not None and optimizer != "none":
        raise TypeError("searchspace is missing: maggy.Searchspace(lr=(\"DOUBLE\", [1e-4, 1]))")
    return BaseConfig(name or "no-name", hb_interval, description, **options)


def _given(train_fn, config, how="", more=None):
    """The function with what the configuration gives it; itself, if that is nothing."""
    given = {k: v for k, v in (("model", config.model), ("dataset", config.dataset), ("hparams", getattr(config, "hparams", None))) if v is not None}
    given.update((k, v) for k, v in (more or {}).items() if v is not None)
    parameters = inspect.signature(train_fn).parameters
    return Function(train_fn, given, how) if given or how or "dist_strategy" in parameters else train_fn


def _values(config):
    """Fixed hyperparameters are arguments by name, too."""
    return {"arguments": dict(config.hparams)} if getattr(config, "hparams", None) else {}


def _search(train_fn, config):
    chosen = spec_of(config.optimizer, lambda o: {"object": o})
    if chosen["type"] == "asha" and "r_max" not in chosen and not config.options.get("max_epochs"):
        chosen = {**Asha.DEFAULTS, **chosen}
    stop = _earlystop.spec_of(config.es_policy, lambda o: {"object": o})
    space = config.searchspace
    if isinstance(space, dict):
        from maggy.searchspace import Searchspace
        space = Searchspace.from_spec(space)
    spec = {
        "kind": "MAGGY",
        "space": space.spec() if space is not None else {},
        "optimizer": chosen,
        "early_stop": {**stop, "es_min": config.es_min, "interval": config.es_interval},
        "direction": _experiment._direction(config.direction),
        "metric": "metric" if config.optimization_key == "Metric" else config.optimization_key,
        "trials": config.num_trials,
    }
    return _experiment.search(_given(train_fn, config), spec, config.name, config.description or None, **config.options)


def _gang(train_fn, config):
    fn = _given(train_fn, config, {"torch": "torch", "tensorflow": "tensorflow"}.get(config.framework, ""), config.given)
    options = dict(config.options)
    framework = options.pop("framework", config.framework)
    return _experiment.gang(fn, {"kind": "MAGGY", **_values(config)}, config.name, config.description or None, framework, **options)


def _ablate(train_fn, config):
    study = config.ablation_study
    chosen = config.ablator
    if isinstance(chosen, str):
        if chosen.lower() != "loco":
            raise ValueError('ablator is %r; there is "loco", and classes derived from maggy.ablation.AbstractAblator' % chosen)
        chosen = _ablation.LOCO
    chosen = chosen(study, []) if isinstance(chosen, type) else chosen
    if not isinstance(chosen, _ablation.AbstractAblator):
        raise TypeError("%r is no ablator: derive it from maggy.ablation.AbstractAblator" % (chosen,))
    chosen.initialize()
    configurations, functions = [], {}
    while len(configurations) < 100_000:
        trial = chosen.get_trial()
        if trial is None:
            break
        feature, layer = (str(trial.params.get(k) or _ablation.NONE) for k in ("ablated_feature", "ablated_layer"))
        configurations.append({"ablated_feature": feature, "ablated_layer": layer})
        functions["%s\0%s" % (feature, layer)] = {k: trial.params.get(k) for k in ("model_function", "dataset_function")}
    if not configurations:
        raise ValueError("the ablator %s has no trial" % type(chosen).__name__)
    if type(chosen) is _ablation.LOCO:
        given = _ablation.given(study, config.model, config.dataset)
    else:
        given = {"ablator": functions}
    spec = {"kind": "MAGGY", "optimizer": {"type": "none"}, "configurations": configurations, "direction": _experiment._direction(config.direction),
            "metric": "metric" if config.optimization_key == "Metric" else config.optimization_key}
    if config.repeats > 1:
        spec["repeats"] = config.repeats
    result = _experiment.search(Function(train_fn, given, "ablation"), spec, config.name, config.description or None, **config.options)
    if result is not None:
        result["ablation"] = _ablation.table(result["trials"])
        if not config.options.get("quiet"):
            print(result["ablation"], flush=True)
        chosen.finalize_experiment(result["trials"])
    return result


def launch(map_fun=None, searchspace=None, optimizer=None, direction="max", num_trials=1, name="no-name", hb_interval=1, es_policy="median", es_interval=300, es_min=10,
           train_fn=None, **keywords):
    """Maggy 0.1's name of lagom, with its order of arguments. (Its es_interval was in seconds, of reports that came each second; here the rule looks after each
    report.)"""
    return lagom(map_fun or train_fn, searchspace=searchspace, optimizer=optimizer, direction=direction, num_trials=num_trials, name=name, hb_interval=hb_interval,
                 es_policy=es_policy, es_interval=1 if es_interval == 300 else es_interval, es_min=es_min, **keywords)


# `from maggy.experiment import experiment`, as in Maggy 1.1, is this module too.
experiment = sys.modules[__name__]
