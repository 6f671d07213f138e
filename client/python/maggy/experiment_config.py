"""maggy.config by the name that it had before Maggy 1.1."""
from maggy.config import (AblationConfig, BaseConfig, DistributedConfig, HyperparameterOptConfig, LagomConfig, OptimizationConfig, TfDistributedConfig,
                          TorchDistributedConfig)

__all__ = ["AblationConfig", "BaseConfig", "DistributedConfig", "HyperparameterOptConfig", "LagomConfig", "OptimizationConfig", "TfDistributedConfig",
           "TorchDistributedConfig"]
