"""Configurations for lagom, as in Maggy 1.x."""


class LagomConfig:
    def __init__(self, name="no-name", description="", hb_interval=1):
        self.name, self.description, self.hb_interval = name, description, hb_interval


class BaseConfig(LagomConfig):
    """One run of the function."""

    def __init__(self, name="base", hb_interval=1, description=""):
        super().__init__(name, description, hb_interval)


class HyperparameterOptConfig(LagomConfig):
    """A search. executors and resources are options of this platform; hb_interval has no effect: reports are sent as they
    are made."""

    def __init__(self, num_trials, optimizer, searchspace, optimization_key="metric", direction="max", es_interval=1, es_min=10,
                 es_policy="median", name="HPOptimization", description="", hb_interval=1, model=None, dataset=None, **options):
        super().__init__(name, description, hb_interval)
        if model is not None or dataset is not None:
            raise NotImplementedError("not supported: model and dataset; make them inside the training function")
        self.num_trials, self.optimizer, self.searchspace = num_trials, optimizer, searchspace
        self.optimization_key, self.direction = optimization_key, direction
        self.es_interval, self.es_min, self.es_policy = es_interval, es_min, es_policy
        self.options = options


OptimizationConfig = HyperparameterOptConfig


class _NotSupported(LagomConfig):
    WHAT = ""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("not supported: " + self.WHAT)


class AblationConfig(_NotSupported):
    WHAT = "ablation studies"


class TorchDistributedConfig(_NotSupported):
    WHAT = "distributed training"


class TfDistributedConfig(_NotSupported):
    WHAT = "distributed training"
