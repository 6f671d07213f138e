"""Optuna here: any of its samplers steers a search, and its studies can lie in the cluster's filesystem.

    from hops.optuna import OptunaOptimizer, JournalBackend
    experiment.lagom(train, searchspace=space, optimizer=OptunaOptimizer(optuna.samplers.TPESampler), num_trials=50)
    study = optuna.create_study(storage=optuna.storages.JournalStorage(JournalBackend("/Projects/lab/studies/first")), load_if_exists=True, study_name="first")

Optuna itself is imported when it is needed; it must be installed for the interpreter of the executors (python=…) too, where the sampler runs.
"""
import importlib
import json
import posixpath
import random
import secrets
import threading
import time

from hops import hdfs
from maggy.optimizer import AbstractOptimizer


def _optuna():
    try:
        return importlib.import_module("optuna")
    except ImportError:
        raise ImportError("optuna is not installed for this interpreter: pip install optuna") from None


class OptunaOptimizer(AbstractOptimizer):
    """An Optuna sampler as optimizer. sampler is its name in optuna.samplers or its class, with arguments; without a seed among them it
    gets the experiment's. A pruner has no place here: es_policy stops trials."""

    def __init__(self, sampler="TPESampler", arguments=None):
        super().__init__()
        self.sampler = sampler if isinstance(sampler, str) else sampler.__name__ if isinstance(sampler, type) and sampler.__module__.startswith("optuna.") else None
        if self.sampler is None:
            raise TypeError("sampler is %r; give its name or its class, and its arguments: OptunaOptimizer(\"CmaEsSampler\", {\"sigma0\": 0.2})" % (sampler,))
        self.arguments = dict(arguments or {})
        self._made_with = ((), {"sampler": self.sampler, "arguments": self.arguments})

    def initialize(self):
        import inspect
        optuna = _optuna()
        made = getattr(optuna.samplers, self.sampler, None)
        if made is None:
            raise ValueError("optuna.samplers has no %s" % self.sampler)
        arguments = dict(self.arguments)
        if "seed" in inspect.signature(made).parameters:
            arguments.setdefault("seed", (self.seed or 0) % (1 << 32))
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize" if self.direction == "max" else "minimize", sampler=made(**arguments))
        self._asked = {}  # Optuna's trials by our number, or by identity until it is known
        self._pending = []

    def get_suggestion(self, trial=None):
        self._tell()
        if len(self._asked) >= self.num_trials:
            return None
        asked = self.study.ask()
        params = self.searchspace._point(lambda name: self._suggest(asked, name))
        made = self.create_trial(params, self.sampler)
        self._asked[id(made)] = made, asked
        return made

    def _suggest(self, asked, name):
        kind, values, log, _ = self.searchspace._parameters[name]
        if kind == "DOUBLE":
            return asked.suggest_float(name, values[0], values[1], log=log)
        if kind == "INTEGER":
            return asked.suggest_int(name, int(values[0]), int(values[1]), log=log)
        return asked.suggest_categorical(name, values)

    def _tell(self):
        """Tell the study what has ended since."""
        optuna = _optuna()
        told = self.__dict__.setdefault("_told", set())
        for trial in self.final_store:
            if id(trial) in told or id(trial) not in self._asked:
                continue
            told.add(id(trial))
            asked = self._asked[id(trial)][1]
            for step, value in trial.metric_dict.items():
                if value == value and step >= 0:
                    asked.report(value, step)
            if any(asked.params.get(k) != v for k, v in trial.params.items()):
                # What was run is not what was suggested here: a search that was read back. The study learns of what was run.
                self.study.tell(asked, state=optuna.trial.TrialState.FAIL)
                if trial.final_metric is not None:
                    self.study.add_trial(self._frozen(optuna, trial))
            elif trial.final_metric is None:
                self.study.tell(asked, state=optuna.trial.TrialState.FAIL)
            elif trial.early_stop and asked.study._storage.get_trial(asked._trial_id).intermediate_values:
                self.study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            else:
                self.study.tell(asked, trial.final_metric)

    def _frozen(self, optuna, trial):
        made = {}
        for name in trial.params:
            if name not in self.searchspace:
                continue
            kind, values, log, _ = self.searchspace._parameters[name]
            made[name] = (optuna.distributions.FloatDistribution(*values, log=log) if kind == "DOUBLE" else
                          optuna.distributions.IntDistribution(*map(int, values), log=log) if kind == "INTEGER" else optuna.distributions.CategoricalDistribution(values))
        return optuna.trial.create_trial(params={k: trial.params[k] for k in made}, distributions=made, value=trial.final_metric)

    def finalize_experiment(self, trials):
        self._tell()


# How long a writer tries to get its turn, in seconds.
PATIENCE = 60.0


class JournalBackend:
    """A backend for optuna.storages.JournalStorage: a directory of the cluster's filesystem, one file per batch of log entries, numbered without a gap.

    The order is the numbers'. A writer makes a file under a name of its own and renames it to the next number, without overwriting: exactly one
    succeeds, the others take the next. So every reader sees the same entries in the same order, no writer waits for a lease, and one that dies leaves nothing
    that anybody reads. Every SNAPSHOT files one writer also leaves them all as one larger file, for who comes later."""

    SNAPSHOT = 64

    def __init__(self, directory, fs=None):
        self.directory = hdfs.abs_path(directory)
        self._fs = fs
        self._lock = threading.Lock()
        self._logs, self._next = [], 0  # what was read: the entries, and the number of the file after them

    @property
    def fs(self):
        return self._fs or hdfs.get_fs()

    def _name(self, number):
        return posixpath.join(self.directory, "%012d.jsonl" % number)

    def read_logs(self, log_number_from):
        """The entries from a number on, in their order."""
        with self._lock:
            self._catch_up()
            return self._logs[log_number_from:]

    def append_logs(self, logs):
        """Add entries; they are durable, and in their place, when this returns. TimeoutError: others were faster all the time."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode("utf-8")
        own = posixpath.join(self.directory, ".new-" + secrets.token_hex(8))
        until = time.monotonic() + PATIENCE
        with self._lock:
            self._catch_up()
            self.fs.create(own, text)
            while True:
                if self._take(own, text, self._next):
                    break
                if time.monotonic() > until:
                    self.fs.delete(own)
                    raise TimeoutError("%s: no turn to write within %.0f s; how many write there?" % (self.directory, PATIENCE))
                time.sleep(random.random() * 0.02)
                self._catch_up()
            self._logs.extend(json.loads(line) for line in text.splitlines())
            self._next += 1
            if self._next % self.SNAPSHOT == 0:
                self._leave_snapshot()

    def _take(self, own, text, number):
        """Rename the file to a number; False: somebody else has it."""
        try:
            self.fs.rename(own, self._name(number), options="NONE")
            return True
        except FileExistsError:
            return False
        except FileNotFoundError:
            # The answer may have been lost: if it is there, its content is ours, because entries name their worker.
            try:
                return self.fs.read(self._name(number)) == text
            except FileNotFoundError:
                raise OSError("%s has vanished: was the study deleted?" % own) from None

    def _catch_up(self):
        if not self._next:
            self._read_snapshot()
        while True:
            try:
                text = self.fs.read(self._name(self._next))
            except FileNotFoundError:
                return
            self._logs.extend(json.loads(line) for line in text.splitlines())
            self._next += 1

    def _leave_snapshot(self):
        """Only one writer comes by each number, and what it leaves is derived: failing is nothing."""
        own = posixpath.join(self.directory, ".new-" + secrets.token_hex(8))
        try:
            self.fs.create(own, b"".join(json.dumps(log, separators=(",", ":")).encode("utf-8") + b"\n" for log in self._logs))
            self.fs.rename(own, posixpath.join(self.directory, "all-%012d.jsonl" % self._next))
            for s in self.fs.list(self.directory):
                name = s["pathSuffix"]
                if name.startswith("all-") and name < "all-%012d.jsonl" % (self._next - self.SNAPSHOT):
                    self.fs.delete(posixpath.join(self.directory, name))
        except OSError:
            pass

    def _read_snapshot(self):
        try:
            names = sorted(s["pathSuffix"] for s in self.fs.list(self.directory) if s["pathSuffix"].startswith("all-"))
        except FileNotFoundError:
            return
        for name in reversed(names):
            try:
                text = self.fs.read(posixpath.join(self.directory, name))
            except FileNotFoundError:
                continue
            self._logs = [json.loads(line) for line in text.splitlines()]
            self._next = int(name[4:16])
            return
