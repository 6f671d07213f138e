"""lagom: run a training function in every way that Maggy knows."""
import sys

from hops import experiment as _experiment
from maggy.config import BaseConfig, HyperparameterOptConfig, LagomConfig
from maggy.optimizer import spec_of


def lagom(train_fn, config=None, name=None, experiment_type="optimization", searchspace=None, optimizer=None, direction="max", num_trials=1,
          ablation_study=None, ablator=None, optimization_key="metric", hb_interval=1, es_policy="median", es_interval=1, es_min=10,
          description="", **options):
    """Run train_fn. config is a LagomConfig (Maggy 1.x); without one, the keywords of Maggy 0.x describe the search.
    Returns Maggy's result: best_id, best_val, best_config, worst_id, ..., num_trials, early_stopped, num_epochs."""
    if config is not None and not isinstance(config, LagomConfig):
        raise TypeError("the second argument of lagom is a config; pass %r by keyword" % (config,))
    if ablation_study is not None or ablator is not None or experiment_type == "ablation":
        raise NotImplementedError("not supported: ablation studies")
    if config is None and searchspace is not None:
        config = HyperparameterOptConfig(num_trials, optimizer or "randomsearch", searchspace, optimization_key, direction, es_interval, es_min,
                                         es_policy, name or "no-name", description, hb_interval, **options)
        options = {}
    elif config is None:
        config = BaseConfig(name or "no-name", hb_interval, description)
    if not isinstance(config, HyperparameterOptConfig):
        return _experiment.search(train_fn, {"kind": "MAGGY", "optimizer": {"type": "none"}}, config.name, config.description or None, **options)
    policy = config.es_policy if isinstance(config.es_policy, str) else "none" if config.es_policy is None else None
    if policy is None:
        raise NotImplementedError("not supported: early stopping written in Python; es_policy is \"median\" or \"none\"")
    optimizer = spec_of(config.optimizer)
    spec = {
        "kind": "MAGGY",
        "space": config.searchspace.spec(),
        "optimizer": optimizer,
        "early_stop": {"policy": policy.lower(), "es_min": config.es_min, "interval": config.es_interval},
        "direction": _experiment._direction(config.direction),
        "metric": "metric" if config.optimization_key == "Metric" else config.optimization_key,
        "trials": config.num_trials,
    }
    return _experiment.search(train_fn, spec, config.name, config.description or None, **{**config.options, **options})


def launch(map_fun, searchspace=None, optimizer=None, direction="max", num_trials=1, name="no-name", **keywords):
    """Maggy 0.1's name of lagom."""
    return lagom(map_fun, searchspace=searchspace, optimizer=optimizer, direction=direction, num_trials=num_trials, name=name, **keywords)


# `from maggy.experiment import experiment`, as in Maggy 1.1, is this module too.
experiment = sys.modules[__name__]
