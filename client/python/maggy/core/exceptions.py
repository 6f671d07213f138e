"""Exceptions under the path that Maggy has them at."""
from hops._run import EarlyStopException, InvalidParams

__all__ = ["EarlyStopException", "InvalidParams"]
