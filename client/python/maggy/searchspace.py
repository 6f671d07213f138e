"""What is searched."""
import itertools
import json
import math
import random


class Searchspace:
    """Hyperparameters by name, each (type, list): DOUBLE and INTEGER with [low, high], DISCRETE and CATEGORICAL with the
    values. More elements: "log" draws DOUBLE and INTEGER evenly in the logarithm; {"when": {name: value or values}} makes the parameter part of
    a configuration only if one that stands before it has one of these values.

        Searchspace(lr=("DOUBLE", [1e-4, 1], "log"), layers=("INTEGER", [1, 4]), opt=("CATEGORICAL", ["sgd", "adam"]),
                    momentum=("DOUBLE", [0, 0.99], {"when": {"opt": "sgd"}}))
    """

    DOUBLE, INTEGER, DISCRETE, CATEGORICAL = "DOUBLE", "INTEGER", "DISCRETE", "CATEGORICAL"

    def __init__(self, **parameters):
        self._parameters = {}
        for name, value in parameters.items():
            self.add(name, value)

    def add(self, name, value, when=None, log=False):
        """Add a parameter. ValueError names what is wrong with it."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError("%r cannot be a parameter of a function" % (name,))
        if name in self._parameters:
            raise ValueError("the hyperparameter %s is there already" % name)
        if not isinstance(value, (tuple, list)) or not 2 <= len(value) <= 4 or isinstance(value[1], (str, bytes)) or not hasattr(value[1], "__iter__"):
            raise ValueError("%s: want (type, list), as (\"DOUBLE\", [0.1, 1.0])" % name)
        kind, values = str(value[0]).upper(), [v.item() if hasattr(v, "item") else v for v in value[1]]  # of an array they are numpy's
        for more in value[2:]:
            if isinstance(more, str) and more.lower() == "log":
                log = True
            elif isinstance(more, dict) and set(more) == {"when"}:
                when = more["when"]
            else:
                raise ValueError("%s: the element %r is neither \"log\" nor {\"when\": {...}}" % (name, more))
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
        self._parameters[name] = (kind, values, log, self._conditions(name, when))

    def _conditions(self, name, when):
        found = {}
        for other, values in (when or {}).items():
            if other not in self._parameters:
                raise ValueError("%s: when names %s, which does not stand before it" % (name, other))
            kind, possible = self._parameters[other][:2]
            if kind not in (self.DISCRETE, self.CATEGORICAL):
                raise ValueError("%s: when names %s, a %s; only DISCRETE and CATEGORICAL parameters can be conditions" % (name, other, kind))
            values = list(values) if isinstance(values, (list, tuple, set)) else [values]
            for value in values:
                if value not in possible:
                    raise ValueError("%s: when wants %s to be %r, which it never is" % (name, other, value))
            found[other] = values
        return found

    def active(self, name, params):
        """Whether a parameter is part of a configuration."""
        return all(other in params and params[other] in values for other, values in self._parameters[name][3].items())

    def to_dict(self):
        """(type, list) by name, as Maggy has it; log and conditions are in spec()."""
        return {n: (p[0], list(p[1])) for n, p in self._parameters.items()}

    def names(self):
        return {n: p[0] for n, p in self._parameters.items()}

    def get(self, name, default=None):
        return self.to_dict().get(name, default)

    def keys(self):
        return list(self._parameters)

    def values(self):
        return list(self.to_dict().values())

    def items(self):
        """A list of {"name", "type", "values"}."""
        return [{"name": n, "type": p[0], "values": list(p[1])} for n, p in self._parameters.items()]

    def json(self):
        return json.dumps(self.to_dict())

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return list(self._parameters[name][1])
        except KeyError:
            raise AttributeError("no hyperparameter %s" % name) from None

    def __iter__(self):
        return iter(self.items())

    def __len__(self):
        return len(self._parameters)

    def __contains__(self, name):
        return name in self._parameters

    def __str__(self):
        return self.json()

    def get_random_parameter_values(self, num, seed=None):
        """num random points, as dicts. Without a seed, random.seed() decides."""
        rng = random if seed is None else random.Random(seed)
        return [self._point(lambda name: self._draw(rng, *self._parameters[name][:3])) for _ in range(num)]

    def _point(self, draw):
        """A configuration: draw(name) of each parameter that is part of it, in order."""
        params = {}
        for name in self._parameters:
            if self.active(name, params):
                params[name] = draw(name)
        return params

    def _draw(self, rng, kind, values, log):
        if kind == self.DOUBLE:
            return math.exp(rng.uniform(*map(math.log, values))) if log else rng.uniform(*values)
        if kind == self.INTEGER:
            if log:
                return min(int(values[1]), max(int(values[0]), round(math.exp(rng.uniform(*map(math.log, values))))))
            return rng.randint(int(values[0]), int(values[1]))
        return rng.choice(values)

    def grid(self):
        """Every configuration, in the order of the parameters. ValueError: there is no end to them."""
        for name, (kind, values, _, _) in self._parameters.items():
            if kind == self.DOUBLE:
                raise ValueError("a grid cannot have %s: a DOUBLE has no end of values; use DISCRETE" % name)
        lists = [list(range(int(v[0]), int(v[1]) + 1)) if k == self.INTEGER else v for k, v, _, _ in self._parameters.values()]
        found = []
        for values in itertools.product(*lists):
            point = self._point(dict(zip(self._parameters, values)).__getitem__)
            if point not in found[-1:] and (not any(p[3] for p in self._parameters.values()) or point not in found):
                found.append(point)
        return found

    # -- numbers, for optimizers

    def dict_to_list(self, hparams):
        """The values of a configuration in the order of the space, None for what is not part of it."""
        return [hparams.get(n) for n in self._parameters]

    def list_to_dict(self, hparams):
        """A configuration from its values in the order of the space."""
        if len(hparams) != len(self._parameters):
            raise ValueError("%d values for %d parameters" % (len(hparams), len(self._parameters)))
        return {n: v for n, v in zip(self._parameters, hparams) if v is not None}

    def transform(self, hparams, normalize_categorical=False):
        """The values of one configuration, as numbers: ranges between 0 and 1 (logarithmic ones in the logarithm), lists as the index of the
        value, between 0 and 1 too if normalize_categorical. hparams is a list in the order of the space, or a dict; what is not part of the configuration
        is -1."""
        if isinstance(hparams, dict):
            hparams = [hparams.get(n) for n in self._parameters]
        if len(hparams) < len(self._parameters):
            raise ValueError("%d values for %d parameters" % (len(hparams), len(self._parameters)))
        out = []
        for value, (kind, values, log, _) in zip(hparams, self._parameters.values()):
            if value is None:
                out.append(-1.0)
            elif kind in (self.DOUBLE, self.INTEGER):
                scale = math.log if log else float
                out.append((scale(value) - scale(values[0])) / (scale(values[1]) - scale(values[0])))
            else:
                index = values.index(value)
                out.append(index / max(1, len(values) - 1) if normalize_categorical else index)
        return out

    def inverse_transform(self, transformed_hparams, normalize_categorical=False):
        """The list of values that transform made these numbers of, None for what is not part of the configuration. Whole numbers are rounded; what lies outside is cut off."""
        out = []
        for x, (kind, values, log, _) in zip(transformed_hparams, self._parameters.values()):
            if x == -1:
                out.append(None)
                continue
            if kind in (self.DOUBLE, self.INTEGER):
                scale = math.log if log else float
                low, high = scale(values[0]), scale(values[1])
                value = low + min(1.0, max(0.0, float(x))) * (high - low)
                value = min(max(math.exp(value) if log else value, values[0]), values[1])
                out.append(float(value) if kind == self.DOUBLE else round(value))
            else:
                index = round(float(x) * max(1, len(values) - 1)) if normalize_categorical else int(x)
                out.append(values[min(len(values) - 1, max(0, index))])
        return out

    # -- specifications

    def spec(self):
        """The space as an experiment's specification has it."""
        out = {}
        for name, (kind, values, log, when) in self._parameters.items():
            out[name] = {"type": kind, "range" if kind in (self.DOUBLE, self.INTEGER) else "values": values}
            if log:
                out[name]["log"] = True
            if when:
                out[name]["when"] = when
        return out

    @classmethod
    def from_spec(cls, spec):
        """The space of a specification."""
        space = cls()
        for name, p in spec.items():
            if isinstance(p, dict):
                space.add(name, (p["type"], p.get("range") or p.get("values")), p.get("when"), bool(p.get("log")))
            else:
                space.add(name, p)
        return space
