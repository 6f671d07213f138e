"""An experiment that is submitted and waited for."""
import difflib
import json
import os
import secrets
import sys
import threading
import time

from hops import _cluster, _code, _display, _http, _jobs, _webhdfs

# Resources of an executor and of the whole, when the call says nothing. Set them once in a program.
defaults = {"executors": 2, "memory": "1GiB", "vcores": 1, "gpus": 0, "queue": "default"}


class ExperimentError(Exception):
    """The experiment could not run or has failed; the message says why and where to look."""


class Following:
    """An experiment that is waited for, and the job that runs it."""

    # These go into the specification as they are.
    SPEC = ("env", "python", "arguments", "preload", "seed", "timeout", "trial_timeout", "report_timeout", "stop_grace", "max_epochs", "executor_mode", "retention",
            "repeats", "trials_per_executor", "distributed", "objectives", "files")
    OPTIONS = {"executors", "memory", "vcores", "gpus", "queue", "project", "priority", "quiet", "logs", "detach", *SPEC}

    def __init__(self, experiment, quiet=False, jobs=None, job=None, logs=False):
        """experiment is its id without the run; job, if it is not told, the one that ran it last."""
        self.experiment, self.quiet, self.logs = experiment + "_1", quiet, logs
        self.jobs = jobs or _jobs.Jobs()
        self.fs = _webhdfs.WebHDFS()
        self.id = job or self._where().get("application", experiment)

    def directory(self):
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
        directory = self.directory()
        try:
            return json.loads(self.fs.read(directory + "/.controller.json").decode("utf-8")) if directory else {}
        except FileNotFoundError:
            return {}

    @classmethod
    def check(cls, options):
        """TypeError: an option is not known."""
        for option in sorted(set(options) - cls.OPTIONS):
            near = difflib.get_close_matches(option, cls.OPTIONS, 1)
            raise TypeError("unknown option %s%s; there are %s" % (option, " (did you mean %s?)" % near[0] if near else "", ", ".join(sorted(cls.OPTIONS))))

    @classmethod
    def submit(cls, fn, spec, name, description, options, versioned=()):
        """Send a function, or a _wrapped.Function, with its specification. Where the specification has an object (an optimizer, a stopping rule) under "object"
        it travels too. versioned are local paths to be kept with the experiment."""
        cls.check(options)
        options = {**defaults, **options}
        kept = list(_local_files(versioned))
        fs = _webhdfs.WebHDFS()
        spec.setdefault("name", name)
        if description:
            spec["description"] = description
        # Places of the specification that hold objects.
        places = [k for k in ("optimizer", "early_stop") if "object" in spec.get(k, {})]
        spec.update((k, dict(spec[k])) for k in places)  # the caller's stay as they are
        holders = [spec[k] for k in places]
        packed = _code.pack_all(fn, [h["object"] for h in holders], spec.pop("extra_files", None))
        for holder, (entry, arguments) in zip(holders, packed.entries):
            del holder["object"]
            holder["entry"] = entry
            if arguments:
                holder["arguments"] = arguments
        artifact = packed.artifact
        spec["entry"] = artifact.entry
        spec["code"] = {"uri": store(fs, artifact), "sha256": artifact.sha256}
        spec.setdefault("executors", options["executors"])
        spec.setdefault("resources", {"memory": options["memory"], "vcores": options["vcores"], "gpus": options["gpus"]})
        spec.setdefault("project", options.get("project") or os.environ.get("HOPS_PROJECT") or _cluster.user())
        for key in cls.SPEC:
            if key in options:
                spec.setdefault(key, options[key])
        if os.environ.get("HOPS_PYTHON"):
            spec.setdefault("python", os.environ["HOPS_PYTHON"])
        jobs = _jobs.Jobs()
        job = cls._start(jobs, spec, options["queue"], options.get("priority"))
        made = cls(job, options.get("quiet", False), jobs, job, options.get("logs", False))
        directory = "/Projects/%s/Experiments/%s/versioned_resources" % (spec["project"], made.experiment)
        for relative, path in kept:
            with open(path, "rb") as f:
                fs.create(_webhdfs.join(directory, relative), f.read(), overwrite=True)
        return made

    @staticmethod
    def _start(jobs, spec, queue, priority):
        job = {"name": spec["name"], "queue": queue, "kind": "experiment", "experiment": spec}
        if priority is not None:
            job["priority"] = priority
        return jobs.submit(job, secrets.token_hex(16))

    @classmethod
    def resume(cls, experiment, queue, quiet, logs=False):
        last = cls(experiment, quiet)
        directory = last.directory()
        if directory is None:
            raise ExperimentError("there is no experiment %s" % experiment)
        if last.state() not in _jobs.FINAL:
            raise ExperimentError("%s runs: wait for it with wait(%r), or stop it first" % (experiment, experiment))
        about = json.loads(last.fs.read(directory + "/experiment.json").decode("utf-8"))
        job = cls._start(last.jobs, dict(about["spec"], resume=last.experiment), queue or defaults["queue"], None)
        return cls(experiment, quiet, last.jobs, job, logs)

    def state(self):
        return self.jobs.get(self.id).get("state")

    def stop(self, reason=""):
        if self.jobs.proxy(self.id, "/v1/experiments/%s/stop" % self.experiment, {"reason": reason}) is None:
            self.jobs.stop(self.id)  # it waits in its queue, or its controller does not answer

    def wait(self):
        """Follow the experiment to its end and return its result document."""
        display, trials = _display.chosen(self.quiet), _display.Trials()
        logs = _display.Logs(self.fs, display.say) if self.logs else None
        ended = threading.Event()
        if display.live or logs:
            threading.Thread(target=self._listen, args=(trials, ended), daemon=True).start()
        try:
            while True:
                try:
                    return self._result(self._follow(display, trials, logs))
                except KeyboardInterrupt:
                    if not self._interrupted(display):
                        raise
        finally:
            ended.set()

    def _follow(self, display, trials, logs):
        delay = 0.1
        while True:
            job = {"id": self.id, **self.jobs.get(self.id)}
            state = job.get("state")
            live = None if state in _jobs.FINAL else self.jobs.proxy(self.id, "/v1/experiments/%s/summary" % self.experiment)
            if logs:
                logs.follow(trials, state in _jobs.FINAL)
            if state not in _jobs.FINAL or not display.live:
                display.show(job, live, trials)
            if state in _jobs.FINAL:
                if display.live:
                    self._ended(display, job, trials)
                display.end()
                return job
            time.sleep(delay)
            delay = min(1.0, delay * 1.5)

    def _ended(self, display, job, trials):
        """Show the end of an experiment, of what its controller has left: before it came, the last that was heard may have been that trials run."""
        try:
            left = json.loads(self.fs.read(self.directory() + "/result.json").decode("utf-8"))
            rows, best = left["trials"], None
            if left.get("best_id") is not None:
                best = {"metric": left["best_val"], "trial": left["best_id"], "params": left["best_config"]}
            live = {"ended": len(rows), "planned": len(rows), "metric": left["metric"], "best": best, "counters": left["counters"],
                    "started": int(time.time() * 1000) - left["duration_ms"]}
        except (OSError, ValueError, KeyError, TypeError, _cluster.ClusterError):
            return  # what was shown last stays
        trials.add("reset", {"trials": rows})
        display.show(job, live, trials)

    def _interrupted(self, display):
        """What becomes of the search after Ctrl-C. True: it is waited for again."""
        display.end()
        if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty() and not isinstance(display, _display.Notebook):
            print("\nstop the search [s], leave it running and return [d], or go on waiting [w]? (d) ", end="", file=sys.stderr, flush=True)
            try:
                answer = sys.stdin.readline().strip().lower()[:1]
            except KeyboardInterrupt:
                answer = "d"
            if answer == "w":
                return True
            if answer == "s":
                self.stop("stopped with Ctrl-C")
                print("the search is being stopped; what its trials found is kept", file=sys.stderr)
                return True
        print("\nthe search goes on; to end it: hops experiment stop %s\n(here: experiment.stop(%r); to wait again: experiment.wait(%r))"
              % ((self.experiment[:-2],) * 3), file=sys.stderr)
        return False

    def _listen(self, trials, ended):
        """Take in the events of the experiment until its end; they are for the eye, so mistakes are of no account."""
        last = None
        while not ended.is_set():
            try:
                for number, event, data in self.jobs.events(self.id, "/v1/experiments/%s/events" % self.experiment, last):
                    trials.add(event, data)
                    last = number or last
                    if ended.is_set():
                        return
            except (*_http.BROKEN, ValueError, KeyError, TypeError, AttributeError, _jobs.JobError, _cluster.ClusterError):
                pass
            ended.wait(1.0)

    def _result(self, job):
        directory, result = self.directory(), {}
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


def _local_files(paths):
    """(relative name, path) of files and of all that lies in directories. FileNotFoundError: a path is not there."""
    for path in [paths] if isinstance(paths, str) else paths or ():
        path = os.path.abspath(str(path))
        if not os.path.exists(path):
            raise FileNotFoundError("versioned_resources: %s is not there" % path)
        if os.path.isfile(path):
            yield os.path.basename(path), path
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                full = os.path.join(folder, name)
                yield os.path.relpath(full, os.path.dirname(path)).replace(os.sep, "/"), full


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
