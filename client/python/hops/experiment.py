"""Experiments under the names of hops-util-py: launch, random_search, grid_search, and search() for all there is.

A call sends the function to the cluster, waits, shows a line of progress and returns what the decks promise. One
experiment runs at a time per process. Ctrl-C (in a notebook: interrupt) ends the waiting, not the search: wait() waits
again, stop() ends the search, resume() goes on with one that failed or was stopped.

A script needs no `if __name__ == "__main__":`. Executors import it down to its first search, where the import ends.

local() calls a training function here, without a cluster.
"""
import difflib
import json
import os
import secrets
import sys
import threading
import time

from hops import _cluster, _code, _jobs, _local, _run as _trial_run, _webhdfs

Reporter = _trial_run.Reporter


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
    _trial_run.submitting("a search")
    if local_logdir:
        raise NotImplementedError("not supported: local_logdir; logs lie in the cluster's filesystem")
    return _alone(lambda: _Following.submit(fn, dict(spec), name, description, options))


def _alone(begin):
    if not _running.acquire(blocking=False):
        raise RuntimeError("an experiment is already running in this process: one at a time")
    try:
        return begin().wait()
    finally:
        _running.release()


def wait(experiment, quiet=False):
    """Wait for an experiment that runs, by its id, and return its result document, with "directory"."""
    return _alone(lambda: _Following(_job_of(experiment), quiet))


def stop(experiment, reason=""):
    """End an experiment: what its trials found is kept, its result is written, its state is KILLED. Returns at once. ExperimentError:
    there is none of that id that runs."""
    running = _Following(_job_of(experiment), True)
    state = running.state()
    if state in _jobs.FINAL:
        raise ExperimentError("%s does not run: it is %s" % (experiment, state))
    if running.jobs.proxy(running.id, "/v1/experiments/%s/stop" % running.experiment, {"reason": reason}) is None:
        running.jobs.stop(running.id)  # it waits in its queue, or its controller does not answer


def resume(experiment, queue=None, quiet=False):
    """Go on with an experiment that failed or was stopped, from its journal: trials that ended are kept, trials that were cut
    short go on from their checkpoints. Waits, and returns the result document, with "directory"."""
    _trial_run.submitting("resume()")
    return _alone(lambda: _Following.resume(_job_of(experiment), queue, quiet))


def local(train_fn, params=None, budget=None, seed=0, arguments=None, directory=None):
    """Call a training function here as a trial would be: parameters by name, a reporter that prints, checkpoints and event
    files in a local directory (default: HOPS_LOCAL_DIR, or a new temporary one). Returns what the function returns."""
    from hops import _trial, checkpoint
    trial = _local.Trial(params, budget, seed, directory)
    before, _trial_run._current = _trial_run._current, trial
    try:
        result = train_fn(**_trial.bind(train_fn, trial, arguments or {}))
        checkpoint.finish()
        return result
    finally:
        _local.flush()
        _trial_run._current = before


def _job_of(experiment):
    """The job's id, of either id: an experiment is <application>_<run>."""
    text = str(experiment).rstrip("/").rsplit("/", 1)[-1]
    return text[:-2] if text.startswith("application_") and text.count("_") == 3 and text.endswith("_1") else text


class _Following:
    """An experiment that is waited for, and the job that runs it."""

    # These go into the specification as they are.
    SPEC = ("env", "python", "arguments", "preload", "seed", "timeout", "trial_timeout", "report_timeout", "stop_grace", "max_epochs", "executor_mode", "retention")
    OPTIONS = {"executors", "memory", "vcores", "gpus", "queue", "project", "priority", "quiet", *SPEC}

    def __init__(self, experiment, quiet, jobs=None, job=None):
        """experiment is its id without the run; job, if it is not told, the one that ran it last."""
        self.experiment, self.quiet = experiment + "_1", quiet
        self.jobs = jobs or _jobs.Jobs()
        self.fs = _webhdfs.WebHDFS()
        self.id = job or self._where().get("application", experiment)

    def _directory(self):
        """The directory of the experiment, None if there is none (yet)."""
        try:
            projects = self.fs.list("/Projects")
        except FileNotFoundError:
            return None
        for project in projects:
            path = "/Projects/%s/Experiments/%s" % (project["pathSuffix"], self.experiment)
            try:
                if self.fs.exists(path):
                    return path
            except PermissionError:
                continue
        return None

    def _where(self):
        """What the controller has left about itself; empty before there was one."""
        directory = self._directory()
        try:
            return json.loads(self.fs.read(directory + "/.controller.json").decode("utf-8")) if directory else {}
        except FileNotFoundError:
            return {}

    @classmethod
    def submit(cls, fn, spec, name, description, options):
        for option in sorted(set(options) - cls.OPTIONS):
            near = difflib.get_close_matches(option, cls.OPTIONS, 1)
            raise TypeError("unknown option %s%s; there are %s" % (option, " (did you mean %s?)" % near[0] if near else "", ", ".join(sorted(cls.OPTIONS))))
        options = {**defaults, **options}
        fs = _webhdfs.WebHDFS()
        spec.setdefault("name", name)
        if description:
            spec["description"] = description
        artifact = _code.pack(fn)
        spec["entry"] = artifact.entry
        spec["code"] = {"uri": store(fs, artifact), "sha256": artifact.sha256}
        spec.setdefault("executors", options["executors"])
        spec.setdefault("resources", {"memory": options["memory"], "vcores": options["vcores"], "gpus": options["gpus"]})
        spec.setdefault("project", options.get("project") or os.environ.get("HOPS_PROJECT") or _cluster.user())
        for key in cls.SPEC:
            if key in options:
                spec.setdefault(key, options[key])
        jobs = _jobs.Jobs()
        job = cls._start(jobs, spec, options["queue"], options.get("priority"))
        return cls(job, options.get("quiet", False), jobs, job)

    @staticmethod
    def _start(jobs, spec, queue, priority):
        job = {"name": spec["name"], "queue": queue, "kind": "experiment", "experiment": spec}
        if priority is not None:
            job["priority"] = priority
        return jobs.submit(job, secrets.token_hex(16))

    @classmethod
    def resume(cls, experiment, queue, quiet):
        last = cls(experiment, quiet)
        directory = last._directory()
        if directory is None:
            raise ExperimentError("there is no experiment %s" % experiment)
        if last.state() not in _jobs.FINAL:
            raise ExperimentError("%s runs: wait for it with wait(%r), or stop it first" % (experiment, experiment))
        about = json.loads(last.fs.read(directory + "/experiment.json").decode("utf-8"))
        job = cls._start(last.jobs, dict(about["spec"], resume=last.experiment), queue or defaults["queue"], None)
        return cls(experiment, quiet, last.jobs, job)

    def state(self):
        return self.jobs.get(self.id).get("state")

    def wait(self):
        """Follow the experiment to its end and return its result document."""
        shown = None
        delay = 0.1
        try:
            while True:
                job = self.jobs.get(self.id)
                state = job.get("state")
                live = None if state in _jobs.FINAL else self.jobs.proxy(self.id, "/v1/experiments/%s/summary" % self.experiment)
                shown = self._show(job, live, shown)
                if state in _jobs.FINAL:
                    break
                time.sleep(delay)
                delay = min(1.0, delay * 1.5)
        except KeyboardInterrupt:
            print("\nthe search goes on; to end it: hops experiment stop %s\n(here: experiment.stop(%r); to wait again: experiment.wait(%r))"
                  % ((self.experiment[:-2],) * 3), file=sys.stderr)
            raise
        if not self.quiet:
            print(file=sys.stderr)
        return self._result(job)

    def _result(self, job):
        directory, result = self._directory(), {}
        if directory is not None:
            try:
                result = json.loads(self.fs.read(directory + "/result.json").decode("utf-8"))
            except FileNotFoundError:
                pass
        if job["phase"] != "SUCCEEDED":
            raise ExperimentError("%s %s: %s (directory: %s)" % (
                self.id, job["phase"], result.get("reason") or job.get("diagnostics") or "no reason given", directory))
        if not result:
            raise ExperimentError("%s has ended, but %s/result.json is not there" % (self.id, directory))
        result["directory"] = directory
        return result

    def _show(self, job, live, shown):
        if self.quiet:
            return shown
        line = "%s %s" % (self.id, job["phase"])
        if job["phase"] == "PENDING" and job.get("pending_reason"):
            line += ": %s" % job["pending_reason"]["text"]
        if live:
            best = live.get("best")
            line += "  trials %d/%d" % (live["ended"], live["planned"])
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
           "parameter_server", "collective_all_reduce", "allreduce", "search", "wait", "stop", "resume", "local", "Reporter"]
