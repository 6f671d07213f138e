"""`from maggy.randomsearch import RandomSearch`, as in Maggy 0.0."""
from maggy.optimizer import RandomSearch

__all__ = ["RandomSearch"]
