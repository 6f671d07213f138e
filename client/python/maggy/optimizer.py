"""Optimizers, by class; lagom takes their names as well.

Those that are here by name run in the controller. A subclass of AbstractOptimizer of your own runs beside it, in a Python process of
its own (docs/reference/brain-protocol.md): lagom sends it along.
"""
import inspect
import json
import sys
import time

from maggy.trial import Trial

IDLE = "IDLE"


class AbstractOptimizer:
    """Base of optimizers written in Python.

    Before initialize() is called there are searchspace, num_trials, direction ("max" or "min"), trial_store (trials that run, by trial_id)
    and final_store (those that have ended, in the order of their ends). get_suggestion(trial) is called whenever a trial can be run;
    trial is one that has ended since and was not handed over yet, or None. It returns a Trial (create_trial), IDLE for "not now, ask again when
    something has happened", or None for "no more". A search survives crashes, by calling it all again with what happened
    before; what was suggested then counts. So draw from `random` or `numpy.random`, which are seeded, and do not look at the clock.

    reports = True: trials that run have the values reported so far in their metric_history (they cost a message each)."""

    reports = False

    def __new__(cls, *args, **kwargs):
        made = super().__new__(cls)
        made._made_with = (args, kwargs)
        return made

    def __init__(self, seed=None, pruner=None, pruner_kwargs=None):
        self.seed, self.pruner, self.pruner_kwargs = seed, pruner, dict(pruner_kwargs or {})
        self.searchspace, self.num_trials, self.direction = None, None, None
        self.trial_store, self.final_store = {}, []

    def initialize(self):
        """Called once, before the first suggestion."""

    def get_suggestion(self, trial=None):
        """A Trial, IDLE, or None when there will be none any more."""
        raise NotImplementedError("%s has no get_suggestion" % type(self).__name__)

    def finalize_experiment(self, trials):
        """Called when the search is over. trials are all that have ended."""

    # -- help for subclasses

    def create_trial(self, hparams, sample_type="random", run_budget=0, model_budget=None):
        """A trial with these parameters. run_budget is in epochs, 0: until the function returns; it is in params as "budget" then.
        sample_type and model_budget say where it came from."""
        info = {"sample_type": sample_type, "sampling_time": time.time()}
        if model_budget is not None:
            info["model_budget"] = model_budget
        if run_budget > 0:
            hparams = dict(hparams, budget=run_budget)
        return Trial(hparams, "optimization", info)

    def hparams_exist(self, trial):
        """Whether a trial with these parameters runs or has ended."""
        return any(t.params == trial.params for t in [*self.trial_store.values(), *self.final_store])

    def _counted(self, budget):
        return [t for t in self.final_store if t.final_metric is not None and (not budget or t.params.get("budget") == budget)]

    def get_hparams_array(self, budget=None):
        """The parameters of the trials that ended with a metric, each as a row of numbers between 0 and 1 (Searchspace.transform); of those
        with this budget only, if one is given. A numpy array where numpy is installed, else a list."""
        return _array([self.searchspace.transform(self.searchspace.dict_to_list(t.params), normalize_categorical=True) for t in self._counted(budget)])

    def get_metrics_array(self, budget=None, interim_metrics=False, interim_metrics_interval=10):
        """The metrics in the order of get_hparams_array; smaller is better, whatever the direction (a metric that is maximized is negated). With interim_metrics
        every interval-th reported value of each trial comes before its final one."""
        sign = -1.0 if self.direction == "max" else 1.0
        out = []
        for t in self._counted(budget):
            if interim_metrics:
                out.extend(sign * v for v in t.metric_history[interim_metrics_interval - 1::interim_metrics_interval])
            out.append(sign * t.final_metric)
        return _array(out)

    def get_metrics_dict(self, trial_ids="all"):
        """The final metrics by trial_id."""
        return {t.trial_id: t.final_metric for t in self._counted(None) if trial_ids == "all" or t.trial_id in trial_ids}

    def ybest(self, budget=None):
        """The best of get_metrics_array: the smallest."""
        return min(self.get_metrics_array(budget))

    def yworst(self, budget=None):
        return max(self.get_metrics_array(budget))

    def ymean(self, budget=None):
        found = self.get_metrics_array(budget)
        return sum(found) / len(found)

    def _log(self, message):
        print(message, file=sys.stderr, flush=True)  # optimizer.log of the experiment

    # -- how it gets into the cluster

    def spec(self):
        """What the specification says of it. None: it is to be sent (_external)."""
        return None


def _array(values):
    try:
        import numpy
    except ImportError:
        return values
    return numpy.array(values)


class _BuiltIn(AbstractOptimizer):
    """One that the controller has. Only pruned ones take a pruner."""

    PRUNED = None
    PRUNER = {"min_budget": "r_min", "max_budget": "r_max", "eta": "eta"}

    def _pruned(self, spec):
        """The specification with the pruner, as Maggy has it, in it."""
        if self.pruner in (None, "none"):
            return spec
        if not isinstance(self.pruner, str) or self.pruner.lower() != "hyperband":
            raise ValueError('pruner is %r; there is "hyperband"' % (self.pruner,))
        if self.PRUNED is None:
            raise NotImplementedError("not supported: %s with a pruner; hyperband goes with RandomSearch and with TPE" % type(self).__name__)
        unknown = sorted(set(self.pruner_kwargs) - set(self.PRUNER) - {"n_iterations"})
        if unknown:
            raise TypeError("unknown option %s of the pruner; there are %s" % (", ".join(unknown), ", ".join(self.PRUNER)))
        if "n_iterations" in self.pruner_kwargs:
            raise NotImplementedError("not supported: n_iterations of the pruner; num_trials says when the search ends")
        return {"type": self.PRUNED, **{new: self.pruner_kwargs[old] for old, new in self.PRUNER.items() if old in self.pruner_kwargs}}

    def get_suggestion(self, trial=None):
        raise NotImplementedError("%s runs in the controller; write get_suggestion, or derive from RandomSearch" % type(self).__name__)


class RandomSearch(_BuiltIn):
    """Random configurations, none twice. With pruner="hyperband": Hyperband (Li et al., JMLR 2018)."""

    PRUNED = "hyperband"

    def spec(self):
        return self._pruned({"type": "random"})

    def initialize(self):
        self._left = None

    def get_suggestion(self, trial=None):
        if self._left is None:
            self._left = self.searchspace.get_random_parameter_values(self.num_trials)
        return self.create_trial(self._left.pop(0)) if self._left else None


class GridSearch(_BuiltIn):
    """Every combination of the values."""

    def spec(self):
        return self._pruned({"type": "grid"})

    def initialize(self):
        self._left = self.searchspace.grid()

    def get_suggestion(self, trial=None):
        return self.create_trial(self._left.pop(0), "grid") if self._left else None


class SingleRun(_BuiltIn):
    """num_trials runs of the function without parameters."""

    def spec(self):
        return self._pruned({"type": "none"})


class Asha(_BuiltIn):
    """Asynchronous successive halving (Li et al., MLSys 2020): of the trials that trained resource_min epochs one in
    reduction_factor goes on, from its checkpoint, to reduction_factor times as many, and so on up to resource_max.

    What is not given has Maggy's defaults, 2, 1 and 4, whose rungs are so near to each other that they choose little better than
    random search does; with max_epochs beside it those of a study: 3, 1 and max_epochs. variant is promotion (default), stopping, or
    restart: promoted trials begin anew, as in Maggy."""

    DEFAULTS = {"eta": 2, "r_min": 1, "r_max": 4}

    def __init__(self, reduction_factor=None, resource_min=None, resource_max=None, variant=None, **kwargs):
        super().__init__(**kwargs)
        for name, value in (("reduction_factor", reduction_factor), ("resource_min", resource_min), ("resource_max", resource_max)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError("%s is %r, not a whole number above 0" % (name, value))
        if reduction_factor == 1 or resource_max is not None and resource_max < (resource_min or 1):
            raise ValueError("reduction_factor must be 2 or more and resource_max not below resource_min")
        self.reduction_factor, self.resource_min, self.resource_max, self.variant = reduction_factor, resource_min, resource_max, variant

    def spec(self):
        return self._pruned(_given("asha", eta=self.reduction_factor, r_min=self.resource_min, r_max=self.resource_max, variant=self.variant))


class TPE(_BuiltIn):
    """Tree-structured Parzen estimator (Bergstra et al., NIPS 2011). gamma is the share of trials that count as good, n_samples how many
    candidates are compared, num_warmup_trials how many are random at first. With pruner="hyperband": BOHB (Falkner et al., ICML 2018)."""

    PRUNED = "bohb"

    def __init__(self, gamma=None, n_samples=None, bw_estimation=None, bw_factor=None, num_warmup_trials=None, random_fraction=None, multivariate=None, **kwargs):
        super().__init__(**kwargs)
        _without("TPE", bw_estimation=bw_estimation, bw_factor=bw_factor, random_fraction=random_fraction)
        self._spec = _given("tpe", gamma=gamma, candidates=n_samples, startup=num_warmup_trials, multivariate=multivariate)

    def spec(self):
        return self._pruned(self._spec)


class GP(_BuiltIn):
    """Bayesian optimization with a Gaussian process. Trials that run are imputed (async_strategy="impute", with impute_strategy cl_min, cl_max or
    cl_mean) or the process is sampled ("asy_ts", Thompson sampling: Kandasamy et al., AISTATS 2018). acq_fun: EI, PI or LCB."""

    IMPUTE = {"cl_min": "min", "cl_max": "max", "cl_mean": "mean"}

    def __init__(self, async_strategy=None, impute_strategy=None, acq_fun=None, acq_fun_kwargs=None, acq_optimizer=None, acq_optimizer_kwargs=None,
                 num_warmup_trials=None, random_fraction=None, interim_results=False, interim_results_interval=None, **kwargs):
        super().__init__(**kwargs)
        _without("GP", acq_fun_kwargs=acq_fun_kwargs, acq_optimizer=None if acq_optimizer in (None, "lbfgs", "auto") else acq_optimizer,
                 acq_optimizer_kwargs=acq_optimizer_kwargs, random_fraction=random_fraction, interim_results=interim_results or None)
        strategies = {None: None, "impute": "impute", "asy_ts": "thompson"}
        if async_strategy not in strategies:
            raise ValueError('async_strategy is %r; there are "impute" and "asy_ts"' % (async_strategy,))
        if impute_strategy is not None and impute_strategy not in self.IMPUTE:
            raise ValueError("impute_strategy is %r; there are %s" % (impute_strategy, ", ".join(self.IMPUTE)))
        acquisition = str(acq_fun).lower() if acq_fun is not None and str(acq_fun).lower() != "asyts" else None
        if acquisition not in (None, "ei", "pi", "lcb"):
            raise ValueError("acq_fun is %r; there are EI, PI and LCB" % (acq_fun,))
        self._spec = _given("gp", strategy=strategies[async_strategy], acquisition=acquisition, impute=self.IMPUTE.get(impute_strategy), startup=num_warmup_trials)

    def spec(self):
        return self._pruned(self._spec)


class Sobol(_BuiltIn):
    """A scrambled Sobol sequence: evenly spread points."""

    def spec(self):
        return self._pruned({"type": "sobol"})


class DifferentialEvolution(_BuiltIn):
    """Differential evolution (Storn and Price, 1997)."""

    def __init__(self, generations=None, population=None, mutation=None, crossover=None, **kwargs):
        super().__init__(**kwargs)
        self._spec = _given("differential_evolution", generations=generations, population=population, mutation=mutation, crossover=crossover)

    def spec(self):
        return self._pruned(self._spec)


class CMAES(_BuiltIn):
    """Covariance matrix adaptation (Hansen, 2016)."""

    def __init__(self, population=None, sigma=None, **kwargs):
        super().__init__(**kwargs)
        self._spec = _given("cmaes", population=population, sigma=sigma)

    def spec(self):
        return self._pruned(self._spec)


class PBT(_BuiltIn):
    """Population based training (Jaderberg et al., 2017): every interval epochs the worst trials take over checkpoint and parameters of
    the best ones, changed a little."""

    def __init__(self, population=None, interval=None, quantile=None, resample=None, **kwargs):
        super().__init__(**kwargs)
        self._spec = _given("pbt", population=population, interval=interval, quantile=quantile, resample=resample)

    def spec(self):
        return self._pruned(self._spec)


def _given(type, **options):
    return {"type": type, **{k: v for k, v in options.items() if v is not None}}


def _without(who, **options):
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError("not supported: %s of %s" % (name, who))


NAMES = {"randomsearch": RandomSearch, "random": RandomSearch, "gridsearch": GridSearch, "grid": GridSearch, "asha": Asha, "tpe": TPE, "gp": GP, "sobol": Sobol,
         "cmaes": CMAES, "pbt": PBT, "differential_evolution": DifferentialEvolution, "none": SingleRun}
BUILT_IN = frozenset(NAMES.values())


def spec_of(optimizer, sent=None):
    """The specification of an optimizer given by name, class or object. sent(object) is called for one that is to be sent with the code, and
    returns the entry to find it by and its arguments."""
    if optimizer is None:
        return SingleRun().spec()
    if isinstance(optimizer, str):
        name = optimizer.lower()
        if name in ("hyperband", "bohb"):
            return {"type": name}
        try:
            return NAMES[name]().spec()
        except KeyError:
            raise ValueError("unknown optimizer %r; there are %s" % (optimizer, ", ".join(sorted([*NAMES, "hyperband", "bohb"])))) from None
    if isinstance(optimizer, type):
        if not issubclass(optimizer, AbstractOptimizer):
            raise TypeError("%r is no optimizer: derive it from maggy.optimizer.AbstractOptimizer" % (optimizer,))
        optimizer = optimizer()
    if not isinstance(optimizer, AbstractOptimizer):
        raise TypeError("%r is no optimizer: derive it from maggy.optimizer.AbstractOptimizer" % (optimizer,))
    if type(optimizer) in BUILT_IN:
        return optimizer.spec()
    if sent is None:
        raise NotImplementedError("not supported here: an optimizer written in Python")
    return {"type": "external", **sent(optimizer)}


def constructed(thing):
    """The arguments by name that an object of ours was made with, if they survive JSON; None where they do not."""
    args, kwargs = getattr(thing, "_made_with", ((), {}))
    try:
        bound = inspect.signature(type(thing).__init__).bind(thing, *args, **kwargs)
    except (TypeError, ValueError):
        return None
    found = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            return None
        if kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    try:
        return found if json.loads(json.dumps(found, allow_nan=False)) == found else None
    except (TypeError, ValueError):
        return None


# `from maggy.optimizer.bayes import TPE, GP` is this module too.
bayes = sys.modules[__name__ + ".bayes"] = sys.modules[__name__]
