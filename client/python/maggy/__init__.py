"""Maggy's names on a hops cluster: experiment.lagom, Searchspace, reporter, and the classes around them.

    from maggy import experiment, Searchspace
    from maggy.experiment import experiment      # as in Maggy 1.1
"""
from hops._run import EarlyStopException, InvalidParams
from maggy import experiment
from maggy.config import AblationConfig, BaseConfig, HyperparameterOptConfig, LagomConfig, OptimizationConfig
from maggy.optimizer import Asha, GridSearch, RandomSearch, SingleRun
from maggy.searchspace import Searchspace

__all__ = ["experiment", "Searchspace", "LagomConfig", "BaseConfig", "HyperparameterOptConfig", "OptimizationConfig", "AblationConfig",
           "EarlyStopException", "InvalidParams", "Asha", "GridSearch", "RandomSearch", "SingleRun"]
