"""What is searched."""
import json
import math
import random


class Searchspace:
    """Hyperparameters by name, each (type, list): DOUBLE and INTEGER with [low, high], DISCRETE and CATEGORICAL with the
    values. A third element "log" draws DOUBLE and INTEGER evenly in the logarithm.

        Searchspace(lr=("DOUBLE", [1e-4, 1], "log"), units=("INTEGER", [8, 64]), act=("CATEGORICAL", ["relu", "tanh"]))
    """

    DOUBLE, INTEGER, DISCRETE, CATEGORICAL = "DOUBLE", "INTEGER", "DISCRETE", "CATEGORICAL"

    def __init__(self, **parameters):
        self._parameters = {}
        for name, value in parameters.items():
            self.add(name, value)

    def add(self, name, value):
        """Add a parameter. ValueError names what is wrong with it."""
        if not name.isidentifier():
            raise ValueError("%r cannot be a parameter of a function" % name)
        if name in self._parameters:
            raise ValueError("the hyperparameter %s is there already" % name)
        if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
            raise ValueError("%s: want (type, list), as (\"DOUBLE\", [0.1, 1.0])" % name)
        kind, values = str(value[0]).upper(), list(value[1])
        log = len(value) == 3 and str(value[2]).lower() == "log"
        if len(value) == 3 and not log:
            raise ValueError("%s: the third element is %r; only \"log\" is known" % (name, value[2]))
        if kind in (self.DOUBLE, self.INTEGER):
            if len(values) != 2 or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
                raise ValueError("%s: a %s needs [low, high]" % (name, kind))
            if kind == self.INTEGER and any(v != int(v) for v in values):
                raise ValueError("%s: the bounds of an INTEGER are whole numbers" % name)
            if not values[0] < values[1]:
                raise ValueError("%s: the range [%s, %s] is empty: the first bound must be below the second" % (name, values[0], values[1]))
            if log and values[0] <= 0:
                raise ValueError("%s: a logarithmic range starts above 0" % name)
        elif kind in (self.DISCRETE, self.CATEGORICAL):
            if not values:
                raise ValueError("%s: the list of values is empty" % name)
            if log:
                raise ValueError("%s: only ranges can be logarithmic" % name)
        else:
            raise ValueError("%s: unknown type %s; there are DOUBLE, INTEGER, DISCRETE, CATEGORICAL" % (name, kind))
        self._parameters[name] = (kind, values, log)

    def to_dict(self):
        return {n: (k, list(v)) for n, (k, v, _) in self._parameters.items()}

    def names(self):
        return {n: k for n, (k, _, _) in self._parameters.items()}

    def get(self, name, default=None):
        return self.to_dict().get(name, default)

    def keys(self):
        return list(self._parameters)

    def values(self):
        return list(self.to_dict().values())

    def items(self):
        """A list of {"name", "type", "values"}."""
        return [{"name": n, "type": k, "values": list(v)} for n, (k, v, _) in self._parameters.items()]

    def json(self):
        return json.dumps(self.to_dict())

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return list(self._parameters[name][1])
        except KeyError:
            raise AttributeError("no hyperparameter %s" % name) from None

    def __str__(self):
        return self.json()

    def get_random_parameter_values(self, num, seed=None):
        """num random points, as dicts."""
        rng = random.Random(seed)
        return [{n: self._draw(rng, *p) for n, p in self._parameters.items()} for _ in range(num)]

    def _draw(self, rng, kind, values, log):
        if kind == self.DOUBLE:
            return math.exp(rng.uniform(*map(math.log, values))) if log else rng.uniform(*values)
        if kind == self.INTEGER:
            if log:
                return min(int(values[1]), max(int(values[0]), round(math.exp(rng.uniform(*map(math.log, values))))))
            return rng.randint(int(values[0]), int(values[1]))
        return rng.choice(values)

    def spec(self):
        """The space as an experiment's specification has it."""
        out = {}
        for name, (kind, values, log) in self._parameters.items():
            out[name] = {"type": kind, "range" if kind in (self.DOUBLE, self.INTEGER) else "values": values}
            if log:
                out[name]["log"] = True
        return out
