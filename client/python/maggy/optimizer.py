"""Optimizers by class; lagom takes their names as well. They run in the cluster, not in this process."""


class AbstractOptimizer:
    """Base of optimizers written in Python."""

    def spec(self):
        raise NotImplementedError("not supported: optimizers written in Python; there are randomsearch, gridsearch, asha and none")


class RandomSearch(AbstractOptimizer):
    def spec(self):
        return {"type": "random"}


class GridSearch(AbstractOptimizer):
    def spec(self):
        return {"type": "grid"}


class SingleRun(AbstractOptimizer):
    def spec(self):
        return {"type": "none"}


class Asha(AbstractOptimizer):
    """Asynchronous successive halving (Li et al., MLSys 2020): of the trials that trained resource_min epochs one in
    reduction_factor goes on, from its checkpoint, to reduction_factor times as many, and so on up to resource_max.

    What is not given has the platform's defaults, the same as in a study: reduction_factor 3, resource_min 1, and as
    resource_max the search's max_epochs, without which it must be given. (Maggy's own are 2, 1 and 4: rungs so near to each
    other that they choose worse than random search does.)"""

    def __init__(self, reduction_factor=None, resource_min=None, resource_max=None):
        for name, value in (("reduction_factor", reduction_factor), ("resource_min", resource_min), ("resource_max", resource_max)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError("%s is %r, not a whole number above 0" % (name, value))
        if reduction_factor == 1 or resource_max is not None and resource_max < (resource_min or 1):
            raise ValueError("reduction_factor must be 2 or more and resource_max not below resource_min")
        self.reduction_factor, self.resource_min, self.resource_max = reduction_factor, resource_min, resource_max

    def spec(self):
        given = {"eta": self.reduction_factor, "r_min": self.resource_min, "r_max": self.resource_max}
        return {"type": "asha", **{k: v for k, v in given.items() if v is not None}}


NAMES = {"randomsearch": RandomSearch, "gridsearch": GridSearch, "asha": Asha, "none": SingleRun}


def spec_of(optimizer):
    """The specification of an optimizer given by name, class or object."""
    if optimizer is None:
        return SingleRun().spec()
    if isinstance(optimizer, str):
        try:
            return NAMES[optimizer.lower()]().spec()
        except KeyError:
            raise ValueError("unknown optimizer %r; there are %s" % (optimizer, ", ".join(sorted(NAMES)))) from None
    if isinstance(optimizer, type):
        optimizer = optimizer()
    if not isinstance(optimizer, AbstractOptimizer):
        raise TypeError("%r is no optimizer" % (optimizer,))
    return optimizer.spec()
