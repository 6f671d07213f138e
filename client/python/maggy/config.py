"""Configurations for lagom, as in Maggy 1.x.

Beside what Maggy has, each takes the platform's options: executors, memory, vcores, gpus, queue, project, python, env, seed and so on
(docs/how-to/studies.md). hb_interval has no effect, because reports are sent as they are made; it is accepted because every program of Maggy may name it.
"""


class LagomConfig:
    """name and description are for people."""

    def __init__(self, name="no-name", description="", hb_interval=1, **options):
        self.name, self.description, self.hb_interval, self.options = name, description, hb_interval, options


class BaseConfig(LagomConfig):
    """One run of the function, with model, dataset and hparams if it asks for them by name."""

    def __init__(self, name="base", hb_interval=1, description="", model=None, dataset=None, hparams=None, **options):
        super().__init__(name, description, hb_interval, **options)
        self.model, self.dataset, self.hparams = model, dataset, hparams


class HyperparameterOptConfig(LagomConfig):
    """A search. model and dataset are given to the function as they are, if it has parameters of these names."""

    def __init__(self, num_trials, optimizer, searchspace, optimization_key="metric", direction="max", es_interval=1, es_min=10,
                 es_policy="median", name="HPOptimization", description="", hb_interval=1, model=None, dataset=None, **options):
        super().__init__(name, description, hb_interval, **options)
        if not isinstance(num_trials, int) or isinstance(num_trials, bool) or num_trials < 1:
            raise ValueError("num_trials is %r, not a whole number above 0" % (num_trials,))
        self.num_trials, self.optimizer, self.searchspace = num_trials, optimizer, searchspace
        self.optimization_key, self.direction = optimization_key, direction
        self.es_interval, self.es_min, self.es_policy = es_interval, es_min, es_policy
        self.model, self.dataset = model, dataset


OptimizationConfig = HyperparameterOptConfig


class AblationConfig(LagomConfig):
    """An ablation study (maggy.ablation). ablator is "loco", a class derived from AbstractAblator or an object of one. repeats is how often each component is
    left out, with other seeds: two or more give confidence intervals."""

    def __init__(self, ablation_study, ablator="loco", direction="max", name="ablationStudy", description="", hb_interval=1, model=None, dataset=None,
                 optimization_key="metric", repeats=1, **options):
        super().__init__(name, description, hb_interval, **options)
        if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
            raise ValueError("repeats is %r, not a whole number above 0" % (repeats,))
        self.ablation_study, self.ablator, self.direction, self.repeats = ablation_study, ablator, direction, repeats
        self.model, self.dataset, self.optimization_key = model, dataset, optimization_key


class DistributedConfig(LagomConfig):
    """One function in all executors together, a gang. executors is how many (default: hops.experiment.defaults)."""

    framework = "plain"

    def __init__(self, module=None, dataset=None, hparams=None, name="distributed", hb_interval=1, description="", model=None, **options):
        super().__init__(name, description, hb_interval, **options)
        if module is not None and model is not None:
            raise TypeError("module and model are two names of the same thing: give one")
        self.model, self.dataset, self.hparams = module if model is None else model, dataset, hparams
        self.given = {}


class TorchDistributedConfig(DistributedConfig):
    """torch.distributed. What the function gets as model (or module) makes models of DistributedDataParallel: module is a class or a function. A DataLoader for
    the share of this rank is hops.dist.context().loader(dataset, …). mixed_precision and zero_lvl are those of hops.dist.Context.wrap."""

    framework = "torch"

    def __init__(self, module=None, dataset=None, hparams=None, backend="torch", mixed_precision=False, zero_lvl=0, deepspeed_config=None, name="torchDist",
                 hb_interval=1, description="", model=None, **options):
        super().__init__(module, dataset, hparams, name, hb_interval, description, model, **options)
        if backend not in ("torch", "ddp", "deepspeed"):
            raise ValueError('backend is %r; there is "torch"' % (backend,))
        if backend == "deepspeed" or deepspeed_config is not None:
            raise NotImplementedError("not supported: DeepSpeed by configuration; use zero_lvl, or call deepspeed.initialize in the function: "
                                      "the gang has the environment that it wants")
        if isinstance(zero_lvl, bool) or zero_lvl not in (0, 1, 2, 3):
            raise ValueError("zero_lvl is %r, not 0, 1, 2 or 3" % (zero_lvl,))
        if (zero_lvl or mixed_precision) and self.model is None:
            raise ValueError("mixed_precision and zero_lvl are done to the module, and none is given: module=..., or hops.dist.context().wrap(model, ...) in the function")
        self.given = {"mixed_precision": bool(mixed_precision), "zero_lvl": zero_lvl}


class TfDistributedConfig(DistributedConfig):
    """TensorFlow's MultiWorkerMirroredStrategy. What the function gets as model makes models under the strategy's scope. process_data(*dataset) is called in each
    member, and what it returns is what the function gets as dataset. mixed_precision sets the policy mixed_float16."""

    framework = "tensorflow"

    def __init__(self, model=None, dataset=None, process_data=None, mixed_precision=False, name="tfDist", hb_interval=1, description="", hparams=None, **options):
        super().__init__(None, dataset, hparams, name, hb_interval, description, model, **options)
        self.given = {"process_data": process_data, "mixed_precision": bool(mixed_precision)}
