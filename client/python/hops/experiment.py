"""Experiments under the names of hops-util-py: launch, random_search, grid_search, and search() for all there is.

A call sends the function to the cluster, waits, shows a line of progress and returns what the decks promise. One
experiment runs at a time per process.
"""
import difflib
import json
import os
import secrets
import sys
import threading
import time

from hops import _cluster, _code, _jobs, _webhdfs


class Direction:
    """Whether the best metric is the largest or the smallest."""

    MAX = "MAX"
    MIN = "MIN"


class ExperimentError(Exception):
    """The experiment could not run or has failed; the message says why and where to look."""


_running = threading.Lock()

# Resources of an executor and of the whole, when the call says nothing. Set them once in a program.
defaults = {"executors": 2, "memory": "1GiB", "vcores": 1, "gpus": 0, "queue": "default"}


def launch(train_fn=None, args_dict=None, name="no-name", local_logdir=False, description=None, metric_key=None, map_fun=None, **options):
    """Run a function once, or once for each element of the equally long lists of args_dict. Returns (directory, outputs)."""
    fn = _function(train_fn, map_fun)
    spec = {"optimizer": {"type": "none"}, "kind": "EXPERIMENT", "metric": metric_key or "metric"}
    if args_dict:
        lengths = {len(v) for v in args_dict.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError("the lists of args_dict have different lengths: %s" % {k: len(v) for k, v in args_dict.items()})
        spec["configurations"] = [{k: v[i] for k, v in args_dict.items()} for i in range(lengths.pop())]
        spec["kind"] = "PARALLEL_EXPERIMENTS"
    result = _run(fn, spec, name, description, local_logdir, options)
    if args_dict and len(spec["configurations"]) > 1:
        return result["directory"], None
    return result["directory"], result.get("best_outputs")


def random_search(train_fn=None, boundary_dict=None, direction=Direction.MAX, samples=10, name="no-name", local_logdir=False, description=None,
                  optimization_key="metric", map_fun=None, **options):
    """Try samples random points within {"name": [low, high]}: two whole numbers give whole numbers, others reals. Returns
    (directory of the best trial, its parameters, its outputs)."""
    space = {}
    for key, bounds in (boundary_dict or {}).items():
        if len(bounds) != 2:
            raise ValueError("boundary_dict[%r] is not [low, high]" % key)
        whole = all(isinstance(b, int) and not isinstance(b, bool) for b in bounds)
        space[key] = {"type": "INTEGER" if whole else "DOUBLE", "range": list(bounds)}
    spec = {"optimizer": {"type": "random"}, "space": space, "trials": samples, "direction": _direction(direction), "metric": optimization_key}
    return _best(_run(_function(train_fn, map_fun), spec, name, description, local_logdir, options))


def grid_search(train_fn=None, grid_dict=None, direction=Direction.MAX, name="no-name", local_logdir=False, description=None,
                optimization_key="metric", map_fun=None, args_dict=None, **options):
    """Try every combination of {"name": [values]}. Returns (directory of the best trial, its parameters, its outputs)."""
    space = {k: {"type": "CATEGORICAL", "values": list(v)} for k, v in (grid_dict or args_dict or {}).items()}
    spec = {"optimizer": {"type": "grid"}, "space": space, "direction": _direction(direction), "metric": optimization_key}
    return _best(_run(_function(train_fn, map_fun), spec, name, description, local_logdir, options))


def differential_evolution(*args, **kwargs):
    raise NotImplementedError("not supported: differential evolution; random_search, grid_search and maggy's asha are there")


def mirrored(*args, **kwargs):
    raise NotImplementedError("not supported: distributed training")


parameter_server = collective_all_reduce = allreduce = mirrored


def search(train_fn, spec, name="no-name", description=None, **options):
    """Run an experiment from its specification (docs/reference/executor-protocol.md, "The experiment in a job"); entry and
    code are made from the function. Returns the result document, with "directory"."""
    return _run(train_fn, spec, name, description, False, options)


def _function(fn, alias):
    fn = fn or alias
    if fn is None:
        raise TypeError("the training function is missing")
    return fn


def _direction(direction):
    text = str(direction).lower()
    if text not in ("max", "min"):
        raise ValueError('direction %r is neither "max" nor "min"' % (direction,))
    return text


def _best(result):
    return result.get("best_dir"), result.get("best_config"), result.get("best_outputs")


def _run(fn, spec, name, description, local_logdir, options):
    if local_logdir:
        raise NotImplementedError("not supported: local_logdir; logs lie in the cluster's filesystem")
    if not _running.acquire(blocking=False):
        raise RuntimeError("an experiment is already running in this process: one at a time")
    try:
        return _Submission(fn, dict(spec), name, description, options).wait()
    finally:
        _running.release()


class _Submission:
    """A submitted experiment that is waited for."""

    # These go into the specification as they are.
    SPEC = ("env", "arguments", "preload", "seed", "timeout", "trial_timeout", "report_timeout", "stop_grace", "max_epochs", "executor_mode", "retention")
    OPTIONS = {"executors", "memory", "vcores", "gpus", "queue", "project", "priority", "quiet", *SPEC}

    def __init__(self, fn, spec, name, description, options):
        for name in sorted(set(options) - self.OPTIONS):
            near = difflib.get_close_matches(name, self.OPTIONS, 1)
            raise TypeError("unknown option %s%s; there are %s" % (name, " (did you mean %s?)" % near[0] if near else "", ", ".join(sorted(self.OPTIONS))))
        options = {**defaults, **options}
        self.fs = _webhdfs.WebHDFS()
        self.jobs = _jobs.Jobs()
        self.quiet = options.get("quiet", False)
        spec.setdefault("name", name)
        if description:
            spec["description"] = description
        artifact = _code.pack(fn)
        spec["entry"] = artifact.entry
        spec["code"] = {"uri": store(self.fs, artifact), "sha256": artifact.sha256}
        spec.setdefault("executors", options["executors"])
        spec.setdefault("resources", {"memory": options["memory"], "vcores": options["vcores"], "gpus": options["gpus"]})
        spec.setdefault("project", options.get("project") or os.environ.get("HOPS_PROJECT") or _cluster.user())
        for key in self.SPEC:
            if key in options:
                spec.setdefault(key, options[key])
        job = {"name": spec["name"], "queue": options["queue"], "kind": "experiment", "experiment": spec}
        if "priority" in options:
            job["priority"] = options["priority"]
        self.project = spec["project"]
        self.id = self.jobs.submit(job, secrets.token_hex(16))
        self.directory = "/Projects/%s/Experiments/%s_1" % (self.project, self.id)

    def wait(self):
        """Follow the experiment to its end and return its result document."""
        shown = None
        delay = 0.1
        try:
            while True:
                job = self.jobs.get(self.id)
                state = job.get("state")
                live = None if state in _jobs.FINAL else self.jobs.proxy(self.id, "/v1/experiments/%s_1?curves=0" % self.id)
                shown = self._show(state, live, shown)
                if state in _jobs.FINAL:
                    break
                time.sleep(delay)
                delay = min(1.0, delay * 1.5)
        except KeyboardInterrupt:
            print("\nstopping %s" % self.id, file=sys.stderr)
            self.jobs.stop(self.id)
            raise
        if not self.quiet:
            print(file=sys.stderr)
        return self._result(job)

    def _result(self, job):
        try:
            result = json.loads(self.fs.read(self.directory + "/result.json").decode("utf-8"))
        except FileNotFoundError:
            result = {}
        if job.get("state") != "FINISHED" or job.get("final_status", "SUCCEEDED") != "SUCCEEDED":
            raise ExperimentError("%s %s: %s (directory: %s)" % (
                self.id, job.get("final_status") if job.get("state") == "FINISHED" else job.get("state"), result.get("reason") or job.get("diagnostics") or "no reason given", self.directory))
        if not result:
            raise ExperimentError("%s has ended, but %s/result.json is not there" % (self.id, self.directory))
        result["directory"] = self.directory
        return result

    def _show(self, state, live, shown):
        if self.quiet:
            return shown
        line = "%s %s" % (self.id, state)
        if live:
            trials = live.get("trials") or []
            ended = sum(t["state"] in ("COMPLETED", "STOPPED", "FAILED", "INVALID", "PAUSED") for t in trials)
            best = live.get("best")
            line += "  trials %d/%d" % (ended, live.get("planned") or len(trials))
            if best:
                line += "  best %s %.5g (trial %s)" % (live["metric"], best["metric"], best["trial"])
        if line != shown:
            end = "\r" if sys.stderr.isatty() else "\n"
            print(line.ljust(len(shown or "")) if end == "\r" else line, end=end, file=sys.stderr, flush=True)
        return line


def store(fs, artifact):
    """Put a code artifact where executors find it, under its own SHA-256; once. Returns its path."""
    directory = "/user/%s/.hops/artifacts" % fs.user
    path = "%s/%s.zip" % (directory, artifact.sha256)
    if not fs.exists(path):
        fs.mkdirs(directory)
        temporary = "%s.%s.tmp" % (path, secrets.token_hex(8))
        fs.create(temporary, artifact.data)
        if not fs.rename(temporary, path):
            fs.delete(temporary)  # somebody else was faster with the same bytes
    return path


__all__ = ["Direction", "ExperimentError", "defaults", "launch", "random_search", "grid_search", "differential_evolution", "mirrored",
           "parameter_server", "collective_all_reduce", "allreduce", "search"]
