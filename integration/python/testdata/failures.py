"""Training functions as they go wrong. Each ends with one error that says what, where and what to do."""
import json
import os
import signal
import sys
import time

from hops import _run, _webhdfs, checkpoint, experiment
from maggy import InvalidParams, Searchspace, experiment as maggy

sys.modules["cloudpickle"] = None  # as if it were not installed: with it closures can travel
experiment.defaults.update(executors=1, memory="256MiB")
options = {"project": "failures", "quiet": True}


def raises(x):
    raise KeyError("a column that is not there")


def falls_silent(x, reporter):
    reporter.broadcast(1.0, 1)
    time.sleep(600)


def limit(path):
    """Leave no room below a path, as an operator might."""
    fs = _webhdfs.WebHDFS()
    fs.mkdirs(path)
    fs._simple("PUT", path, "SETQUOTA", storagespacequota=1)


class Narrow:
    """As a model of torch does."""

    def load_state_dict(self, state):
        raise RuntimeError("Error(s) in loading state_dict for Narrow:\n\tsize mismatch for weight: copying a param with shape [2]")


def goes_wrong(how, reporter):
    if how == "raises":
        raise ValueError("a bad idea")
    if how == "text":
        reporter.broadcast("much", 1)
    if how == "diverges":
        reporter.broadcast(float("nan"), 1)
    if how == "backwards":
        reporter.broadcast(1, 5)
        reporter.broadcast(1, 4)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        sys.exit(3)
    if how == "module":
        import module_that_nobody_has
        return module_that_nobody_has
    if how == "nan":
        return {"metric": float("nan")}
    if how == "words":
        return "much"
    if how == "exits at once":
        os._exit(3)
    if how == "forks":
        reporter.broadcast(1.0, 1)
        os.fork()
        for step in range(2, 1000):
            reporter.broadcast(1.0, step)
            time.sleep(0.05)
    if how == "full disk":
        with open("/dev/full", "w") as f:
            f.write("x" * 100000)
    if how == "full filesystem":
        folder = _run.current().checkpoints
        limit(folder)
        checkpoint.save({"x": 1}, 1)
    if how == "another shape":
        checkpoint.save({"model": {"weight": [1.0, 2.0]}}, 1)
        checkpoint.restore(Narrow())
    if how == "invalid":
        raise InvalidParams("these do not go together")
    if how == "nothing":
        return None
    return 1.5


# What the trial of each must end with.
WRONG = {
    "raises": ("FAILED", "ValueError", "a bad idea"),
    "text": ("FAILED", "MetricNotNumber", "'much', not a number"),
    "diverges": ("FAILED", "MetricNotFinite", "NaN"),
    "backwards": ("FAILED", "StepBackwards", "must not go backwards"),
    "killed": ("FAILED", "ProcessDied", "SIGKILL"),
    "exits": ("FAILED", "FunctionExited", "sys.exit(3)"),
    "exits at once": ("FAILED", "ProcessDied", "status 3"),
    "nan": ("FAILED", "MetricNotFinite", "NaN"),
    "words": ("FAILED", "MetricNotNumber", "'much', not a number"),
    "forks": ("FAILED", "ReportFromFork", "has forked, too"),
    "full disk": ("FAILED", "OSError", "free space on the disk of"),
    "full filesystem": ("FAILED", "HdfsError", "free space in the filesystem"),
    "another shape": ("FAILED", "CheckpointMismatch", "does not fit the Narrow"),
    "module": ("FAILED", "ModuleNotFoundError", "module_that_nobody_has"),
    "invalid": ("INVALID", "InvalidParameters", "these do not go together"),
    "nothing": ("FAILED", "MetricMissing", 'neither reported nor returned "metric"'),
    "well": ("COMPLETED", "", ""),
}


def wants_more(x, y):
    return x


def needs_a_module(x):
    import module_that_nobody_has
    return module_that_nobody_has


def fails(words, call, *args, kind=experiment.ExperimentError, **kwargs):
    try:
        result = call(*args, **kwargs)
    except kind as e:
        for word in words:
            assert word in str(e), "%r is not in %r" % (word, str(e))
        print("ok", e)
        return
    raise AssertionError("%s: no %s, but %r" % (words, kind.__name__, result))


def one(fn, **more):
    return experiment.grid_search(fn, {"x": [1]}, name=fn.__name__, **{**options, **more})


def closure():
    outside = 3

    def train(x):
        return outside
    return train


class Model:
    def train(self, x):
        return x


CASES = {
    "raises": lambda: fails(["FAILED", "KeyError", "a column that is not there", "log: /Projects/failures/"], one, raises),
    "falls_silent": lambda: fails(["ReportTimeout", "nothing was reported for 1s", "raise report_timeout"], one, falls_silent,
                                  report_timeout="1s", stop_grace="100ms"),
    "wants_more": lambda: fails(["y"], one, wants_more),
    "closure": lambda: fails(["'outside'"], one, closure(), kind=Exception),
    "lambda": lambda: fails(["lambda"], one, lambda x: x, kind=Exception),
    "method": lambda: fails(["bound"], one, Model().train, kind=Exception),
    "empty_range": lambda: fails(["lr", "empty"], Searchspace, lr=("DOUBLE", [3, 1]), kind=ValueError),
    "wrong_kind": lambda: fails(["TRIPLE"], Searchspace, lr=("TRIPLE", [3, 1]), kind=ValueError),
    "empty_grid": lambda: fails(["x"], experiment.grid_search, raises, {"x": []}, kind=Exception, **options),
    "wrong_boundary": lambda: fails(["x", "[low, high]"], experiment.random_search, raises, {"x": [1, 2, 3]}, kind=ValueError, **options),
    "unknown_optimizer": lambda: fails(["magic", "randomsearch"], maggy.lagom, raises, searchspace=Searchspace(x=("INTEGER", [1, 2])),
                                       optimizer="magic", kind=ValueError),
    "unknown_option": lambda: fails(["did you mean gpus?"], one, raises, gpu=1, kind=TypeError),
    "unknown_queue": lambda: fails(["nowhere"], one, raises, queue="nowhere", kind=Exception),
    "no_room": lambda: (limit("/Projects/full"), fails(["FAILED", "quota"], one, raises, **{"project": "full"})),
    "too_large": lambda: fails(["memory"], one, raises, memory="much", kind=Exception),
}


def each_its_own():
    """In one search every function goes wrong in its own way; what goes well is the result."""
    result = experiment.search(goes_wrong, {"optimizer": {"type": "grid"}, "space": {"how": {"type": "CATEGORICAL", "values": list(WRONG)}}},
                               name="wrong", **{**options, "executors": 3})
    assert result["best_config"] == {"how": "well"} and result["best_val"] == 1.5, result
    seen = {}
    for trial in result["trials"]:
        state, kind, text = WRONG[trial["params"]["how"]]
        error = trial.get("error") or {}
        said = "%s %s" % (trial.get("reason", ""), json.dumps(error))
        assert trial["state"] == state and kind in said and text in said.replace('\\"', '"'), (trial, state, kind, text)
        if error:  # one line with the trial's log and what to do
            line = trial["reason"]
            assert "\n" not in line and error["remedy"] and error["remedy"] in line and "(log: " in line, (trial, line)
            assert error["log"].startswith("%s/%s/output" % (result["directory"], trial["trial"])) and error["log"] in line, (trial, line)
            said = "trial %s: %s" % (trial["trial"], line)
        seen[trial["params"]["how"]] = said
    assert set(seen) == set(WRONG), seen
    for how, said in sorted(seen.items()):
        print("ok", how, said)


if __name__ == "__main__":
    for name in sys.argv[1:] or list(CASES) + ["each_its_own"]:
        print("case", name, flush=True)
        CASES.get(name, each_its_own)()
