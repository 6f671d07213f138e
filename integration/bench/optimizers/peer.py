"""Optuna's samplers on the functions of functions.go: same spaces, same values, same budget.

    python peer.py --out peer.json [--functions branin,levy4] [--samplers tpe,cmaes,gp] [--seeds 20]

Writes one JSON object a run, a line each: function, optimizer, seed, regret after 25, 50 and 100 evaluations, seconds of the sampler a
suggestion. Runs that the file has already are not run again. `make bench-optimizers` makes the environment that this needs.
"""
import argparse
import json
import math
import os
import sys
import time
import warnings

PI = math.pi
ALPHA = (1.0, 1.2, 3.0, 3.2)
A6 = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14))
P6 = ((0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886), (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
      (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650), (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381))
A3 = ((3, 10, 30), (0.1, 10, 35), (3, 10, 30), (0.1, 10, 35))
P3 = ((0.3689, 0.1170, 0.2673), (0.4699, 0.4387, 0.7470), (0.1091, 0.8732, 0.5547), (0.0381, 0.5743, 0.8828))


class Fixed:
    """Gives the values of a dict instead of suggesting them."""

    def __init__(self, values):
        self.values = values

    def suggest_float(self, name, *_, **__):
        return self.values[name]

    suggest_int = suggest_categorical = suggest_float


def reals(t, n, low, high):
    return [t.suggest_float("x%d" % i, low, high) for i in range(1, n + 1)]


def branin(t):
    x1, x2 = t.suggest_float("x1", -5, 10), t.suggest_float("x2", 0, 15)
    return (x2 - 5.1 / (4 * PI ** 2) * x1 ** 2 + 5 / PI * x1 - 6) ** 2 + 10 * (1 - 1 / (8 * PI)) * math.cos(x1) + 10


def hartmann(x, a, p):
    return -sum(al * math.exp(-sum(aj * (xj - pj) ** 2 for aj, xj, pj in zip(ai, x, pi))) for al, ai, pi in zip(ALPHA, a, p))


def hartmann6(t):
    return hartmann(reals(t, 6, 0, 1), A6, P6)


def hartmann3(t):
    return hartmann(reals(t, 3, 0, 1), A3, P3)


def hartmann6n(t):
    x = reals(t, 6, 0, 1)
    clean = hartmann(x, A6, P6)
    return clean + 0.2 * math.sin(1e5 * sum(x)), clean


def rosenbrock5(t):
    x = reals(t, 5, -5, 10)
    return sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (x[i] - 1) ** 2 for i in range(4))


def ackley5(t):
    x = reals(t, 5, -32.768, 32.768)
    return -20 * math.exp(-0.2 * math.sqrt(sum(v * v for v in x) / 5)) - math.exp(sum(math.cos(2 * PI * v) for v in x) / 5) + 20 + math.e


def shift(i):
    return 2.1 * math.sin(1.7 * i)


def sphere10(t):
    return sum((v - shift(i)) ** 2 for i, v in enumerate(reals(t, 10, -5, 5), 1))


def levy(t, n):
    w = [1 + (v - shift(i)) / 4 for i, v in enumerate(reals(t, n, -10, 10), 1)]
    return (math.sin(PI * w[0]) ** 2 + sum((v - 1) ** 2 * (1 + 10 * math.sin(PI * v + 1) ** 2) for v in w[:-1])
            + (w[-1] - 1) ** 2 * (1 + math.sin(2 * PI * w[-1]) ** 2))


def styblinski5(t):
    return sum(v ** 4 - 16 * v ** 2 + 5 * v for v in reals(t, 5, -5, 5)) / 2


def rastrigin4(t):
    return sum(10 + (v - shift(i)) ** 2 - 10 * math.cos(2 * PI * (v - shift(i))) for i, v in enumerate(reals(t, 4, -5.12, 5.12), 1))


def log4(t):
    z = [math.log10(t.suggest_float("x%d" % i, 1e-6, 100, log=True)) + 2 - shift(i) for i in range(1, 5)]
    return sum(i * v * v for i, v in enumerate(z, 1)) + (z[0] + z[1] + z[2] + z[3]) ** 2


def svm(t):
    kernel = t.suggest_categorical("kernel", ["linear", "rbf", "poly"])
    c = math.log10(t.suggest_float("C", 1e-3, 1e3, log=True))
    g = math.log10(t.suggest_float("gamma", 1e-5, 10, log=True))
    degree = t.suggest_int("degree", 2, 5)
    if kernel == "linear":
        return 0.12 + 0.01 * (c + 0.5) ** 2
    if kernel == "rbf":
        return 0.03 + 0.02 * (c - 1.2) ** 2 + 0.03 * (g + 2.1) ** 2 + 0.01 * (c - 1.2) * (g + 2.1)
    return 0.06 + 0.015 * (c - 0.3) ** 2 + 0.02 * (g + 1.4) ** 2 + 0.01 * (degree - 3) ** 2


def cnn(t):
    lr = math.log10(t.suggest_float("lr", 1e-5, 1, log=True))
    momentum = t.suggest_float("momentum", 0, 0.99)
    layers = t.suggest_int("layers", 1, 8)
    units = t.suggest_int("units", 8, 512, log=True)
    batch = t.suggest_categorical("batch", [16, 32, 64, 128, 256])
    act = t.suggest_categorical("act", ["relu", "tanh", "sigmoid", "elu"])
    dropout = t.suggest_float("dropout", 0, 0.8)
    return (0.05 + 0.04 * (lr + 2.5 - 0.3 * (math.log2(batch) - 6)) ** 2 + 0.1 * (momentum - 0.9) ** 2 + 0.01 * (layers - 4) ** 2
            + 0.02 * (math.log2(units) - 7) ** 2 + {"relu": 0.0, "tanh": 0.03, "sigmoid": 0.08, "elu": 0.01}[act]
            + 0.15 * (dropout - 0.3) ** 2)


def conditional(t):
    optimizer = t.suggest_categorical("optimizer", ["sgd", "adam", "rmsprop"])
    lr = math.log10(t.suggest_float("lr", 1e-5, 1, log=True))
    if optimizer == "sgd":
        momentum = t.suggest_float("momentum", 0, 1)
        nesterov = t.suggest_categorical("nesterov", [True, False])
        return 0.08 + 0.05 * (lr + 1) ** 2 + 0.3 * (momentum - 0.85) ** 2 + (0 if nesterov else 0.02)
    beta = t.suggest_float("beta", 0.5, 0.999)
    if optimizer == "adam":
        warmup = t.suggest_int("warmup", 0, 10)
        return 0.04 + 0.05 * (lr + 3) ** 2 + 0.5 * (beta - 0.9) ** 2 + 0.002 * (warmup - 4) ** 2
    return 0.06 + 0.05 * (lr + 2.5) ** 2 + 0.5 * (beta - 0.95) ** 2


def int6(t):
    z = [t.suggest_int("x%d" % i, -100, 100) - round(40 * math.sin(1.7 * i)) for i in range(1, 7)]
    return (sum(i * v * v for i, v in enumerate(z, 1)) + sum(z) ** 2) / 100


def cat8(t):
    v = [int(t.suggest_categorical("x%d" % i, ["v0", "v1", "v2", "v3", "v4"])[1]) for i in range(1, 9)]
    return sum((3 * i + 2 * k) % 5 / 5 for i, k in enumerate(v, 1)) + sum(0.3 for a, b in zip(v, v[1:]) if a == b)


def griewank5(t):
    z = [v - 100 * shift(i) for i, v in enumerate(reals(t, 5, -600, 600), 1)]
    return sum(v * v for v in z) / 4000 - math.prod(math.cos(v / math.sqrt(i)) for i, v in enumerate(z, 1)) + 1


def michalewicz5(t):
    return -sum(math.sin(v) * math.sin(i * v * v / PI) ** 20 for i, v in enumerate(reals(t, 5, 0, PI), 1))


BETA = (1, 2, 2, 4, 4, 6, 3, 7, 5, 5)
C = ((4, 4, 4, 4), (1, 1, 1, 1), (8, 8, 8, 8), (6, 6, 6, 6), (3, 7, 3, 7), (2, 9, 2, 9), (5, 3, 5, 3), (8, 1, 8, 1), (6, 2, 6, 2), (7, 3.6, 7, 3.6))


def shekel4(t):
    x = reals(t, 4, 0, 10)
    return -sum(1 / (b / 10 + sum((v - w) ** 2 for v, w in zip(x, c))) for b, c in zip(BETA, C))


def schwefel3(t):
    return sum(418.9828872724339 - v * math.sin(math.sqrt(abs(v))) for v in reals(t, 3, -500, 500))


def noise(total):
    parts = [math.sin(total * 12.9898 + i * 78.233) * 43758.5453 for i in range(12)]
    return sum(v - math.floor(v) for v in parts) - 6


def boostn(t):
    log_rate = math.log10(t.suggest_float("rate", 1e-3, 1, log=True))
    rate = log_rate + math.log10(t.suggest_int("trees", 10, 1000, log=True)) - 1.3
    depth = t.suggest_int("depth", 2, 12)
    child = math.log10(t.suggest_float("child", 0.1, 100, log=True)) - 0.4
    rows = t.suggest_float("rows", 0.4, 1)
    columns = t.suggest_float("columns", 0.3, 1)
    grow = t.suggest_categorical("grow", ["depth", "leaf"])
    clean = (0.1 + 0.05 * math.log1p(4 * rate ** 2) + 0.004 * (depth - 6 - 0.5 * rate) ** 2 + 0.01 * child ** 2 + 0.2 * (rows - 0.8) ** 2
             + 0.1 * (columns - 0.6) ** 2 + (0.02 + 0.01 * abs(depth - 9) if grow == "leaf" else 0))
    return clean + 0.005 * noise(log_rate + rows + columns), clean


def ellipsoid10(t):
    x = [v - 3 * math.sin(1.7 * i + 1) for i, v in enumerate(reals(t, 10, -5, 5), 1)]
    mean = sum(x) / 10
    return sum(10 ** (i / 3) * (v - 2 * mean) ** 2 for i, v in enumerate(x))


def pipeline(t):
    scale = {"none": 0.03, "standard": 0.0, "robust": 0.01}[t.suggest_categorical("scale", ["none", "standard", "robust"])]
    model = t.suggest_categorical("model", ["linear", "forest", "net"])
    if model == "linear":
        alpha = math.log10(t.suggest_float("alpha", 1e-5, 10, log=True)) + 2
        penalty = t.suggest_categorical("penalty", ["l1", "l2", "both"])
        extra = {"l1": 0.02, "l2": 0.01, "both": 0.0}[penalty]
        if penalty == "both":
            extra += 0.1 * (t.suggest_float("ratio", 0, 1) - 0.7) ** 2
        return 0.15 + 0.01 * alpha ** 2 + extra + scale
    if model == "forest":
        trees = math.log10(t.suggest_int("trees", 10, 500, log=True)) - 2.3
        return 0.09 + 0.03 * trees ** 2 + 0.001 * (t.suggest_int("depth", 2, 20) - 11) ** 2 + scale / 3
    rate = math.log10(t.suggest_float("rate", 1e-5, 0.1, log=True)) + 3
    width = math.log2(t.suggest_int("width", 16, 1024, log=True)) - 8
    layers = t.suggest_categorical("layers", [1, 2, 3])
    more = 0.02
    if layers > 1:
        more = 0.004 * (math.log2(t.suggest_int("second", 16, 1024, log=True)) - 6) ** 2 + 0.01 * (layers - 2)
    return 0.05 + 0.04 * (rate + 0.1 * width) ** 2 + 0.004 * width ** 2 + more + 2 * scale


def netn(t):
    log_rate = math.log10(t.suggest_float("rate", 1e-5, 1, log=True))
    log_decay = math.log10(t.suggest_float("decay", 1e-7, 0.1, log=True))
    dropout = t.suggest_float("dropout", 0, 0.8)
    width = math.log2(t.suggest_int("width", 16, 1024, log=True)) - 7
    act = t.suggest_categorical("act", ["relu", "gelu", "tanh"])
    rate, decay = log_rate + 2.7, log_decay + 4
    clean = (0.08 + 0.05 * math.sqrt(0.1 + rate ** 2 + 0.3 * rate * decay + 0.2 * decay ** 2) - 0.05 * math.sqrt(0.1) + 0.1 * (dropout - 0.35) ** 2
             + 0.006 * width ** 2 + {"relu": 0.01, "gelu": 0.0, "tanh": 0.05}[act])
    return clean + 0.02 * noise(log_rate + log_decay + dropout), clean


NOISY = ("hartmann6n", "boostn", "netn")

FUNCTIONS = {
    "branin": (branin, 0.39788735772973816), "hartmann6": (hartmann6, -3.3223680114155), "rosenbrock5": (rosenbrock5, 0.0), "ackley5": (ackley5, 0.0),
    "sphere10": (sphere10, 0.0), "levy4": (lambda t: levy(t, 4), 0.0), "svm": (svm, 0.03), "cnn": (cnn, 0.05), "log4": (log4, 0.0),
    "styblinski5": (styblinski5, -5 * 39.16616570377142), "hartmann3": (hartmann3, -3.862779787332663), "hartmann6n": (hartmann6n, -3.3223680114155),
    "levy10": (lambda t: levy(t, 10), 0.0), "rastrigin4": (rastrigin4, 0.0), "conditional": (conditional, 0.04), "int6": (int6, 0.0), "cat8": (cat8, 0.0),
    "griewank5": (griewank5, 0.0), "michalewicz5": (michalewicz5, -4.687658179088147), "shekel4": (shekel4, -10.53644315348353),
    "schwefel3": (schwefel3, 0.0), "boostn": (boostn, 0.1), "ellipsoid10": (ellipsoid10, 0.0), "pipeline": (pipeline, 0.05), "netn": (netn, 0.08),
}


def sampler(name, seed, function):
    import optuna
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, deterministic_objective=function not in NOISY)
    raise SystemExit("unknown sampler %s" % name)


def run(function, name, seed):
    import optuna
    f, optimum = FUNCTIONS[function]
    study = optuna.create_study(sampler=sampler(name, seed, function), direction="minimize")
    regrets, own = [], []

    def objective(trial):
        out = f(trial)
        value, clean = out if isinstance(out, tuple) else (out, out)
        regrets.append(clean - optimum)
        return value

    begin = time.process_time()
    study.optimize(objective, n_trials=100)
    own.append((time.process_time() - begin) / 100)
    best = [min(regrets[:n]) for n in (25, 50, 100)]
    return {"function": function, "optimizer": name, "seed": seed, "regret": best, "seconds": own[0]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", required=True)
    p.add_argument("--functions", default=",".join(FUNCTIONS))
    p.add_argument("--samplers", help="default: tpe,cmaes and, where PyTorch is installed, gp")
    p.add_argument("--seeds", type=int, default=20)
    o = p.parse_args()
    unknown = [f for f in o.functions.split(",") if f not in FUNCTIONS]
    if unknown:
        raise SystemExit("there is no function %s" % unknown[0])
    if not o.samplers:
        o.samplers = "tpe,cmaes"
        try:
            import torch  # noqa: F401
            o.samplers += ",gp"
        except Exception as why:  # it is there and cannot be loaded, or it is not there
            print("without Optuna's gp, which needs PyTorch: %s" % why, file=sys.stderr)
    warnings.simplefilter("ignore")
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    done = set()
    if os.path.exists(o.out):
        with open(o.out) as f:
            done = {(r["function"], r["optimizer"], r["seed"]) for r in map(json.loads, f)}
    with open(o.out, "a") as out:
        for name in o.samplers.split(","):
            for function in o.functions.split(","):
                for seed in range(o.seeds):
                    if (function, name, seed) not in done:
                        out.write(json.dumps(run(function, name, seed)) + "\n")
                        out.flush()


if __name__ == "__main__":
    main()
