"""A run of the program itself, recorded as an experiment directory: experiment.begin() and end()."""
import atexit
import json
import os
import secrets
import time

from hops import VERSION, _cluster, _following, _local, _run, _webhdfs, _wire

_begun = None


class _Driver(_local.Trial):
    """What tensorboard, checkpoint and reporter find while a run is recorded."""

    def __init__(self, directory, fs, logdir):
        order = {"trial": "0001", "attempt": 1, "params": {}, "dirs": {"checkpoints": directory + "/checkpoints", "tensorboard": logdir, "trial": directory}}
        _run.Trial.__init__(self, order, None, fs)
        self.directory = directory


class _Run:
    def __init__(self, name, description, project, local_logdir, versioned):
        self.fs = _webhdfs.WebHDFS()
        self.begun = time.time()
        # No application: the time and chance make the id.
        self.id = "local_%d_%s_1" % (self.begun * 1000, secrets.token_hex(4))
        project = project or os.environ.get("HOPS_PROJECT") or _cluster.user()
        self.directory = "/Projects/%s/Experiments/%s" % (project, self.id)
        kept = list(_following._local_files(versioned))
        self.about = {"id": self.id, "user": _cluster.user(), "project": project, "versions": {"hops": VERSION}, "state": "RUNNING", "started": int(self.begun * 1000),
                      "spec": {"name": name, "description": description or "", "kind": "EXPERIMENT", "project": project}}
        self.fs.mkdirs(self.directory)
        for relative, path in kept:
            with open(path, "rb") as f:
                self.fs.create("%s/versioned_resources/%s" % (self.directory, relative), f.read())
        self.local = None
        if local_logdir:
            import tempfile
            self.local = tempfile.mkdtemp(prefix="hops-logdir-")
        self._write("experiment.json", self.about)
        self.before, self.trial = _run._current, _Driver(self.directory, self.fs, self.local or self.directory)
        self.environment = os.environ.get("ML_ID")
        os.environ["ML_ID"] = self.id
        _run.set_current(self.trial)

    def _write(self, name, document):
        self.fs.create("%s/%s" % (self.directory, name), _wire.encode(document), overwrite=True)

    def end(self, state, metric):
        from hops import tensorboard
        tensorboard.flush()
        if self.local:
            tensorboard.upload(self.local, self.directory, self.fs)
        if metric is None:
            metric = self.trial.last_metric
        outputs = {} if metric is None else {"metric": metric}
        duration = int((time.time() - self.begun) * 1000)
        self.about.update(state=state, finished=int(time.time() * 1000), duration_ms=duration)
        self._write("experiment.json", self.about)
        self._write(".summary.json", {"combinations": [{"parameters": {}, "outputs": outputs}]})
        self._write("result.json", {"id": self.id, "state": state, "direction": "max", "metric": "metric", "duration_ms": duration, "num_trials": 1, "best_id": "0001",
                                    "best_val": metric, "best_config": {}, "best_dir": self.directory, "best_outputs": outputs,
                                    "metric_list": [] if metric is None else [metric], "trials": []})
        _run.set_current(self.before)
        if self.environment is None:
            os.environ.pop("ML_ID", None)
        else:
            os.environ["ML_ID"] = self.environment


def begin(name, local_logdir, versioned, description, project):
    global _begun
    _begun = _Run(name, description, project, local_logdir, versioned)
    return _begun.directory


def begun():
    """Whether a run is recorded."""
    return _begun is not None


def end(metric):
    global _begun
    if _begun is None:
        raise RuntimeError("end() was called without begin()")
    metric = None if metric is None else _run.number(metric)
    run, _begun = _begun, None
    run.end("FINISHED", metric)
    return run.directory


@atexit.register
def _killed():
    global _begun
    if _begun is not None:
        run, _begun = _begun, None
        try:
            run.end("KILLED", None)
        except (OSError, _cluster.ClusterError):
            pass  # the program ends in any case


# What is forked from the program is not the run.
os.register_at_fork(after_in_child=lambda: globals().update(_begun=None))
