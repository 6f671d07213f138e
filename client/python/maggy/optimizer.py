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
    reduction_factor goes on, from its checkpoint, to reduction_factor times as many, and so on up to resource_max."""

    def __init__(self, reduction_factor=2, resource_min=1, resource_max=4):
        for name, value in (("reduction_factor", reduction_factor), ("resource_min", resource_min), ("resource_max", resource_max)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError("%s is %r, not a whole number above 0" % (name, value))
        if reduction_factor < 2 or resource_max < resource_min:
            raise ValueError("reduction_factor must be 2 or more and resource_max not below resource_min")
        self.reduction_factor, self.resource_min, self.resource_max = reduction_factor, resource_min, resource_max

    def spec(self):
        return {"type": "asha", "eta": self.reduction_factor, "r_min": self.resource_min, "r_max": self.resource_max}


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
