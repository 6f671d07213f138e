"""Samplers of Optuna drive searches here, beside the controller; and two processes share a study of Optuna's in the cluster's filesystem."""
import os
import subprocess
import sys

from hops.optuna import JournalBackend, OptunaOptimizer
from maggy import Searchspace, experiment

SPACE = Searchspace(x=("DOUBLE", [-5, 5]), y=("DOUBLE", [-5, 5]), n=("INTEGER", [1, 4]), kind=("CATEGORICAL", ["a", "b"]))


def train(x, y, n, kind):
    return (x - 1) ** 2 + (y + 2) ** 2 + (n - 2) ** 2 + (kind == "b")


if "STUDY_SEED" in os.environ:  # one of the processes that share a study
    import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.JournalStorage(JournalBackend("/Projects/examples/optuna"))
    study = optuna.create_study(storage=storage, study_name="shared", load_if_exists=True, sampler=optuna.samplers.RandomSampler(seed=int(os.environ["STUDY_SEED"])))
    study.optimize(lambda t: (t.suggest_float("x", -5, 5) - 1) ** 2, n_trials=10)
    sys.exit(0)

for sampler in ("TPESampler", "CmaEsSampler", "RandomSampler"):
    result = experiment.lagom(train, searchspace=SPACE, optimizer=OptunaOptimizer(sampler), num_trials=16, direction="min", es_policy="none", executors=2, memory="512MiB",
                              python=sys.executable, seed=3)
    assert result["num_trials"] == 16 and result["best_val"] < 20, result
    print(sampler, round(result["best_val"], 3))

import optuna
from hops import hdfs

hdfs.mkdir("/Projects/examples/optuna")
users = [subprocess.Popen([sys.executable, __file__], env=dict(os.environ, STUDY_SEED=str(n))) for n in (1, 2, 3)]
assert [u.wait() for u in users] == [0, 0, 0]
study = optuna.load_study(study_name="shared", storage=optuna.storages.JournalStorage(JournalBackend("/Projects/examples/optuna")))
assert len(study.trials) == 30 and all(t.state.is_finished() for t in study.trials), len(study.trials)
print("OK optuna_sampler", round(study.best_value, 4))
