"""Small functions that programs of hops-util-py call."""
import itertools
import os


def grid_params(params):
    """The Cartesian product of {"name": [values]} as a dict of lists of one length, the last name changing fastest: what launch() runs element by
    element."""
    for name, values in params.items():
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
            raise ValueError("%s is %r, not a list of values" % (name, values))
    rows = list(itertools.product(*params.values()))
    return {name: [row[i] for row in rows] for i, name in enumerate(params)}


def num_executors():
    """How many executors an experiment has whose call does not say."""
    from hops import experiment
    return experiment.defaults["executors"]


def num_param_servers():
    """How many of them are parameter servers: NUM_TF_PS, 0 without it."""
    told = os.environ.get("NUM_TF_PS", "0") or "0"
    if not told.strip().isdigit():
        raise ValueError("NUM_TF_PS is %r, not a number" % told)
    return int(told)
