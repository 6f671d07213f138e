"""Maggy's names on a hops cluster: experiment.lagom, Searchspace, reporter, and the classes around them.

    from maggy import experiment, Searchspace
    from maggy.experiment import experiment      # as in Maggy 1.1
"""
import sys

from hops import tensorboard
from hops._run import EarlyStopException, InvalidParams
from maggy import experiment
from maggy.ablation import AblationStudy
from maggy.config import (AblationConfig, BaseConfig, DistributedConfig, HyperparameterOptConfig, LagomConfig, OptimizationConfig, TfDistributedConfig,
                          TorchDistributedConfig)
from maggy.experiment import lagom, launch
from maggy.optimizer import Asha, GridSearch, RandomSearch, SingleRun
from maggy.searchspace import Searchspace
from maggy.trial import Trial

__all__ = ["experiment", "lagom", "launch", "Searchspace", "Trial", "AblationStudy", "LagomConfig", "BaseConfig", "HyperparameterOptConfig", "OptimizationConfig",
           "AblationConfig", "DistributedConfig", "TorchDistributedConfig", "TfDistributedConfig", "EarlyStopException", "InvalidParams", "Asha", "GridSearch",
           "RandomSearch", "SingleRun", "tensorboard"]

sys.modules["maggy.tensorboard"] = tensorboard
