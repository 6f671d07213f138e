"""One trial in its own process: find the function, bind its arguments, run it, say how it ended."""
import importlib
import inspect
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import traceback

from hops import _run, _webhdfs

_setup = None


def prepare(setup):
    """Import what every trial needs, before the first fork. Returns a problem to report from the first trial, or None:
    an import that fails is the trial's error, with its log, not the executor's."""
    global _setup
    _setup = setup
    if setup.get("code_dir"):
        sys.path.insert(0, setup["code_dir"])
    sys.path.insert(0, os.getcwd())
    try:
        for name in setup.get("preload") or []:
            importlib.import_module(name)
        module = setup["entry"].split(":", 1)[0]
        if module != "cloudpickle":  # unpickled inside the trial's process only
            importlib.import_module(module)
    except BaseException as e:  # noqa: B902 - user code may raise anything, SystemExit too
        return _describe(e)
    return None


def run_and_exit(sock, output, problem):
    """Become the process of a trial: never returns."""
    from hops import _zygote
    code = 1
    try:
        _zygote.die_with_parent()
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for stream in (sys.stdout, sys.stderr):  # a print is one write, whatever the interpreter was started with
            stream.reconfigure(line_buffering=True, write_through=False)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        code = run(sock, problem)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: B902
        traceback.print_exc()
    finally:
        os._exit(code)


def run(sock, problem):
    """Run the trial whose order arrives on the socket. Returns the exit status."""
    channel = _run.Channel(sock)
    order = channel.receive()
    os.environ.update(order.get("env") or {})
    fs = _webhdfs.WebHDFS()
    trial = _run.Trial(order, channel, fs)
    _run.set_current(trial)
    random.seed(trial.seed)
    home, work = os.getcwd(), tempfile.mkdtemp(prefix="trial-%s-%d-" % (trial.id, trial.attempt), dir=os.getcwd())
    os.chdir(work)
    try:
        if problem:
            final = {"error": problem}
        else:
            final = _call(trial, order)
        _close_writers()
        trial.finish(final)
        return 0 if "error" not in final else 1
    finally:
        os.chdir(home)
        shutil.rmtree(work, ignore_errors=True)


def _call(trial, order):
    try:
        fn = find(_setup["entry"])
        result = fn(**bind(fn, trial, _setup.get("arguments") or {}))
        return outcome(result, _setup.get("metric") or "metric", trial, order)
    except _run.EarlyStopException:
        return {"stopped": True}
    except BaseException as e:  # noqa: B902
        traceback.print_exc()
        error = _describe(e)
        return {"invalid": True, "error": error} if isinstance(e, _run.InvalidParams) else {"error": error}


def find(entry):
    """The function named "module:qualname"."""
    name, _, qualname = entry.partition(":")
    if name == "cloudpickle":
        import cloudpickle
        with open(os.path.join(_setup["code_dir"], qualname), "rb") as f:
            return cloudpickle.load(f)
    found = importlib.import_module(name)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def bind(fn, trial, arguments):
    """Arguments of a call by parameter name: hyperparameters, the experiment's own arguments, reporter, budget, hparams."""
    own = {
        "reporter": _run.Reporter(),
        "hparams": dict(trial.params),
        "budget": trial.budget.get("to") or None,
        "trial_id": trial.id,
        "seed": trial.seed,
    }
    available = dict(own)
    available.update(arguments)
    available.update(trial.params)
    bound, missing = {}, []
    parameters = inspect.signature(fn).parameters
    for name, p in parameters.items():
        if p.kind is p.VAR_POSITIONAL or p.kind is p.VAR_KEYWORD:
            continue
        if p.kind is p.POSITIONAL_ONLY:
            raise TypeError("%s: parameter %s must not be positional only: arguments are bound by name" % (fn.__name__, name))
        if name in available and not (name == "budget" and available[name] is None and p.default is not p.empty):
            bound[name] = available[name]
        elif p.default is p.empty:
            missing.append(name)
    if missing:
        raise TypeError("%s wants %s; the trial has %s" % (fn.__name__, ", ".join(missing), ", ".join(sorted(available))))
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        bound.update({k: v for k, v in trial.params.items() if k not in bound})
    unused = [k for k in trial.params if k not in bound and "hparams" not in bound]
    if unused:
        raise TypeError("%s does not take the hyperparameter %s: add a parameter of that name, or **hparams" % (fn.__name__, ", ".join(sorted(unused))))
    return bound


def outcome(result, key, trial, order):
    """How a function that returned has ended: its metric and outputs."""
    outputs, metric = {}, None
    if isinstance(result, dict):
        for name, value in result.items():
            if isinstance(value, str) and value and os.path.isfile(value):
                with open(value, "rb") as f:
                    trial.fs.create(_webhdfs.join(order["dirs"]["trial"], os.path.basename(value)), f.read(), overwrite=True)
                os.remove(value)
                outputs[str(name)] = os.path.basename(value)
            elif isinstance(value, (bool, str)) or value is None:
                outputs[str(name)] = value
            else:
                outputs[str(name)] = _run.number(value)
        if key in outputs:
            metric = _run.number(outputs[key])
        elif len(outputs) == 1:
            only = next(iter(outputs.values()))
            metric = only if isinstance(only, (int, float)) and not isinstance(only, bool) else None
        elif outputs and trial._last_metric is None:
            raise KeyError("the function returned %s, none of which is the metric %r" % (", ".join(sorted(outputs)), key))
    elif result is not None:
        metric = _run.number(result)
        outputs = {key: metric}
    return {"metric": metric, "outputs": outputs}


def _describe(e):
    text = "".join(traceback.format_exception(type(e), e, e.__traceback__))
    error = {"type": type(e).__name__, "message": (str(e) or type(e).__name__).split("\n")[0][:500], "traceback": text}
    if isinstance(e, ValueError) and str(e).startswith("the metric is"):
        error["type"] = "MetricNotFinite" if "NaN" in str(e) else "MetricNotNumber"
    elif isinstance(e, ValueError) and "must not go backwards" in str(e):
        error["type"] = "StepBackwards"
    elif isinstance(e, _run.InvalidParams):
        error["type"] = "InvalidParameters"
    elif isinstance(e, ModuleNotFoundError):
        error["remedy"] = "install %s for %s on the nodes, or put it beside the script" % (e.name, sys.executable)
    return error


def _close_writers():
    from hops import tensorboard
    try:
        tensorboard.flush()
    except OSError as e:
        print("TensorBoard events were not written: %s" % e, file=sys.stderr)


def main():
    """A fresh interpreter for one trial (executor mode spawn): argument 1 is the descriptor of its socket, argument 2 a
    file with the set-up document."""
    from hops import _zygote
    _zygote.die_with_parent()
    with open(sys.argv[2]) as f:
        setup = json.load(f)
    code = run(socket.socket(fileno=int(sys.argv[1])), prepare(setup))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
