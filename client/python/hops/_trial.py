"""One trial in its own process: find the function, bind its arguments, run it, say how it ended."""
import errno
import importlib
import importlib.util
import inspect
import json
import os
import random
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import traceback

from hops import _cluster, _run, _webhdfs, _wire, checkpoint, dist

_setup = None

# What stands for a trial's work directory in the environment of a gang.
TRIAL_DIR = "$HOPS_TRIAL_DIR"
# The name of a module that is run as a script.
SCRIPT = "__main__"
# Room for what a function returns; the controller takes 256 KiB.
MAX_OUTPUTS = 200 << 10
# Characters of a traceback, which holds the whole message of its exception; a call has 1 MiB in all.
MAX_TRACEBACK = 32 << 10


def setting(name):
    """What the executor was told about the experiment; None outside of a trial."""
    return (_setup or {}).get(name)


class ArgumentMismatch(TypeError):
    """The function's parameters and the trial's arguments do not go together."""


class FunctionMissing(AttributeError):
    """The module has no function of the name."""


class MetricMissing(KeyError):
    """The function returned a dict without the metric."""

    def __str__(self):
        return self.args[0]


def prepare(setup):
    """Import what every trial needs, before the first fork. Returns a problem to report from the first trial, or None:
    an import that fails is the trial's error, with its log, not the executor's."""
    global _setup
    _setup = setup
    if setup.get("code_dir"):
        sys.path.insert(0, setup["code_dir"])
    sys.path.insert(0, os.getcwd())
    # A script that reads its arguments when it is imported gets none, instead of this process's.
    module, _, name = setup["entry"].partition(":")
    sys.argv = [os.path.join(setup.get("code_dir") or os.getcwd(), module.replace(".", os.sep) + ".py")]
    _run.importing = True
    try:
        dist.warm(setup.get("framework"))
        for preloaded in setup.get("preload") or []:
            _import(preloaded)
        if name == SCRIPT:
            pass  # it does its work when it is run
        elif module == "cloudpickle":  # unpickled inside the trial's process only
            _check_pickle(setup)
        else:
            _import(module)
        dist.warmed(setup.get("framework"))
    except BaseException as e:  # noqa: B902 - user code may raise anything, SystemExit too
        return _describe(e)
    finally:
        _run.importing = False
    return None


def _import(name):
    """Import a module. A script without `if __name__ == "__main__":` comes to the call that submitted
    this experiment: there its import ends, and what is defined above the call is used."""
    if name in sys.modules:
        return
    if "." in name:
        _import(name.rpartition(".")[0])
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named %r" % name, name=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # stays there, which importlib would not grant a module whose import an exception ended
    try:
        spec.loader.exec_module(module)
    except _run.SubmissionReached:
        pass
    except BaseException:
        del sys.modules[name]
        raise
    if "." in name:
        setattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)


def _check_pickle(setup):
    """A pickle is for the version of Python that made it."""
    try:
        with open(os.path.join(setup["code_dir"], "manifest.json")) as f:
            made = json.load(f).get("python")
    except (OSError, ValueError):
        return
    here = "%d.%d" % sys.version_info[:2]
    if made and made != here:
        raise RuntimeError("the function was pickled by Python %s and cannot be read by Python %s of %s: name an interpreter of that version "
                              "(python=...), or define the function in a file" % (made, here, sys.executable))


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
        _flush()
    except BaseException:  # noqa: B902
        traceback.print_exc()
    finally:
        os._exit(code)


def run_here(sock, output, problem):
    """Run a trial in this process, which runs others after it: standard output, environment and directory are as before then. False: no
    other trial may follow. Frameworks form one group a process, and that of a gang is over with its attempt."""
    kept, streams = [os.dup(1), os.dup(2)], (sys.stdout, sys.stderr)
    environment = dict(os.environ)
    try:
        for stream, number in zip(streams, (1, 2)):
            stream.flush()
            os.dup2(output, number)
            stream.reconfigure(line_buffering=True, write_through=False)
        os.close(output)
        run(sock, problem)
    except BaseException:  # noqa: B902
        traceback.print_exc()
    finally:
        _flush()
        for name, stream, number, old in zip(("stdout", "stderr"), streams, (1, 2), kept):
            os.dup2(old, number)
            os.close(old)
            if stream.closed:
                stream = open(number, "w", buffering=1, encoding=stream.encoding, errors=stream.errors, closefd=False)
            setattr(sys, name, stream)
        sock.close()
        alone = _run._current is None or not _run._current.gang
        _run.set_current(None)
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
    return alone


def run(sock, problem):
    """Run the trial whose order arrives on the socket. Returns the exit status."""
    fs, channel = _webhdfs.WebHDFS(), _run.Channel(sock)
    try:
        order = channel.receive()
    except EOFError:
        return 0  # the executor has no more trials
    os.environ.update(order.get("env") or {})
    trial = _run.Trial(order, channel, fs)
    _run.set_current(trial)
    random.seed(trial.seed)
    home, work = os.getcwd(), None
    try:
        try:
            work = tempfile.mkdtemp(prefix="trial-%s-%d-" % (trial.id, trial.attempt), dir=home)
            os.chdir(work)
            for name, text in (order.get("files") or {}).items():
                with open(os.path.basename(name), "w") as f:
                    f.write(text)
        except OSError as e:  # the disk is full, as a rule
            problem = problem or _describe(e)
        for name, value in (order.get("env") or {}).items():
            if work and TRIAL_DIR in value:
                os.environ[name] = value.replace(TRIAL_DIR, work)
        if problem:
            final = {"error": problem}
        else:
            dist.prepare(trial)
            final = _call(trial, order)
        _close_writers()
        _flush()
        trial.finish(final)
        return 0 if "error" not in final else 1
    finally:
        os.chdir(home)
        if work:
            shutil.rmtree(work, ignore_errors=True)


def _call(trial, order):
    try:
        fn = find(_setup["entry"])
        if trial.gang and not dist.calls(fn, trial.gang):
            return dist.serve(trial)
        process = os.getpid()
        try:
            result = fn(**bind(fn, trial, _setup.get("arguments") or {})) if fn is not None else run_script(trial)
        except BaseException as e:
            if os.getpid() != process:
                _end_of_fork(process, e)
            checkpoint.finish(quiet=True)  # how the function ended is what counts
            raise
        if os.getpid() != process:
            _end_of_fork(process)
        checkpoint.finish()
        dist.shutdown()
        return outcome(result, _setup.get("metric") or "metric", trial, order)
    except _run.EarlyStopException:
        return {"stopped": True}
    except BaseException as e:  # noqa: B902
        error = _describe(e)
        try:
            traceback.print_exc()
        except Exception:  # noqa: B902 - the function has closed standard error
            pass
        return {"invalid": True, "error": error} if isinstance(e, _run.InvalidParams) else {"error": error}


def _end_of_fork(process, problem=None):
    """The end of a process that the function has forked and that came out of it: the trial is not over, and what is the trial's, as
    its directory, is not touched."""
    code = 0
    if isinstance(problem, SystemExit):
        code = problem.code if isinstance(problem.code, int) else 0 if problem.code is None else 1
    elif problem is not None:
        code = 1
        traceback.print_exception(type(problem), problem, problem.__traceback__)
    try:
        print("process %d, which the function has forked, came to the end of the function and ends; the trial is what process %d returns" % (os.getpid(), process),
              file=sys.stderr)
        _flush()
    finally:
        os._exit(code & 255)


def find(entry):
    """The function named "module:qualname"; None for "module:__main__", which is run as a script."""
    name, _, qualname = entry.partition(":")
    if qualname == SCRIPT:
        return None
    if name == "cloudpickle":
        import cloudpickle
        with open(os.path.join(_setup["code_dir"], qualname), "rb") as f:
            return cloudpickle.load(f)
    found = sys.modules.get(name) or importlib.import_module(name)
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise FunctionMissing("%s is not defined in %s%s" % (qualname, os.path.basename(getattr(found, "__file__", None) or name),
                                                                " above its first search" if _run.reached else "")) from None
    return found


def run_script(trial):
    """Run the module as `python module.py` does. Its arguments are the list `argv` of the experiment's arguments, and then everything
    else and the hyperparameters as --name value; true is --name alone, false nothing."""
    name = _setup["entry"].partition(":")[0]
    given = dict(_setup.get("arguments") or {})
    argv = [str(a) for a in given.pop("argv", [])]
    for key, value in list(given.items()) + list(trial.params.items()):
        if value is not False and value is not None:
            argv += ["--" + key] + ([] if value is True else [value if isinstance(value, str) else json.dumps(value)])
    sys.argv[1:] = argv
    try:
        runpy.run_module(name, run_name=SCRIPT, alter_sys=True)
    except SystemExit as e:
        if e.code not in (None, 0):
            raise
    return None


def bind(fn, trial, arguments):
    """Arguments of a call by parameter name: hyperparameters, the experiment's own arguments, reporter, budget, hparams."""
    own = {
        "reporter": _run.Reporter(trial),
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
            raise ArgumentMismatch("%s: parameter %s must not be positional only: arguments are bound by name" % (fn.__name__, name))
        if name in available and not (name == "budget" and available[name] is None and p.default is not p.empty):
            bound[name] = available[name]
        elif p.default is p.empty:
            missing.append(name)
    if missing:
        raise ArgumentMismatch("%s wants %s; the trial has %s" % (fn.__name__, ", ".join(missing), ", ".join(sorted(available))))
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        bound.update({k: v for k, v in trial.params.items() if k not in bound})
    unused = [k for k in trial.params if k not in bound and "hparams" not in bound]
    if unused:
        raise ArgumentMismatch("%s does not take the hyperparameter %s: add a parameter of that name, or **hparams" % (fn.__name__, ", ".join(sorted(unused))))
    return bound


def outcome(result, key, trial, order):
    """How a function that returned has ended: its metric and outputs. Only the metric can be a mistake."""
    if result is None or trial.rank:  # of a gang the chief's result counts
        return {"metric": None, "outputs": {}}
    if not isinstance(result, dict):
        metric = _run.number(result)
        return {"metric": metric, "outputs": {key: metric}}
    outputs, metric = {}, None
    for name, value in result.items():
        if isinstance(value, str) and value and len(value) < 4096 and "\0" not in value and os.path.isfile(value):
            with open(value, "rb") as f:
                trial.fs.create(_webhdfs.join(order["dirs"]["trial"], os.path.basename(value)), f.read(), overwrite=True)
            value = os.path.basename(value)
        outputs[_wire.text(str(name))] = _wire.plain(value)
    if key in result:
        metric = _run.number(result[key])
    elif key == "metric" and len(result) == 1:
        # Nobody named a metric, as in HopsML: the only value is it, if it is a number.
        only = next(iter(result.values()))
        metric = _run.number(only) if isinstance(only, (int, float)) and not isinstance(only, bool) else None
    elif trial.last_metric is None and not (key == "metric" and _setup.get("metric_optional")):
        raise MetricMissing("the function returned a dict with %s; the metric is %r" % (", ".join(sorted(map(repr, outputs))) or "nothing", key))
    return {"metric": metric, "outputs": _shortened(outputs)}


def _shortened(outputs):
    """Outputs of a size that the controller takes: the largest ones are cut; of very many the first ones are kept."""
    def size(name):
        return len(json.dumps(name)) + len(json.dumps(outputs[name])) + 4

    sizes = {name: size(name) for name in outputs}
    total = sum(sizes.values())
    for name in sorted(sizes, key=sizes.get, reverse=True)[:100]:
        if total <= MAX_OUTPUTS or sizes[name] < 2000:  # what is cut may still have 1,500
            break
        outputs[name] = "%s… (%d bytes; write it to a file)" % (str(outputs[name])[:200], sizes[name])
        print("the output %.200r has %d bytes, too many to keep; write it to a file" % (name, sizes[name]), file=sys.stderr)
        total, sizes[name] = total - sizes[name] + size(name), size(name)
    if total <= MAX_OUTPUTS and len(outputs) <= _wire.MAX_ITEMS:
        return outputs
    kept, total = {}, 0
    for name, value in outputs.items():
        total += sizes[name]
        if total > MAX_OUTPUTS or len(kept) == _wire.MAX_ITEMS:
            break
        kept[name] = value
    print("of %d outputs the first %d are kept; write so many to a file" % (len(outputs), len(kept)), file=sys.stderr)
    return kept


def _middle_cut(text, size):
    """A text of about size characters: the middle of a longer one is left out."""
    if len(text) <= size:
        return text
    half = size // 2
    return "%s\n… %d characters …\n%s" % (text[:half], len(text) - 2 * half, text[-half:])


# Words of a namenode that has no datanode with room for a block.
_NO_ROOM = "could only be written to"


def _full(e):
    """What to do about an error for want of space, "" if it is another one. One of a checkpoint that was saved in the background has it as its cause."""
    while e is not None:
        if getattr(e, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return "free space on the disk of %s, or have the function write into the filesystem (hops.hdfs)" % socket.gethostname()
        if getattr(e, "exception", "").endswith("QuotaExceededException"):
            return "free space in the filesystem, or ask for a larger quota"
        if _NO_ROOM in str(e):
            return "free space in the filesystem, or see what its datanodes say (hops dfsadmin -report)"
        e = e.__cause__
    return ""


def _describe(e):
    text = _middle_cut("".join(traceback.format_exception(type(e), e, e.__traceback__)), MAX_TRACEBACK)
    error = {"type": type(e).__name__, "message": (_wire.described(e) or type(e).__name__).split("\n")[0][:500], "traceback": text}
    if isinstance(e, ValueError) and error["message"].startswith("the metric is"):
        error["type"] = "MetricNotFinite" if "NaN" in error["message"] else "MetricNotNumber"
        error["remedy"] = "lower the learning rate or return early" if "NaN" in error["message"] else "report and return numbers"
    elif isinstance(e, ValueError) and "must not go backwards" in error["message"]:
        error.update(type="StepBackwards", remedy="report rising steps, or none to have them counted")
    elif isinstance(e, _run.InvalidParams):
        error["type"] = "InvalidParameters"
    elif isinstance(e, ArgumentMismatch):
        error["remedy"] = "the function's parameters are hyperparameters, arguments of the experiment, reporter, budget, hparams, seed, trial_id, and what has a default"
    elif isinstance(e, FunctionMissing) and _run.reached:
        error["remedy"] = 'an executor imports the script down to its first search: define the function above it, or put the searches under if __name__ == "__main__":'
    elif isinstance(e, MetricMissing):
        error["remedy"] = "return it under that key, or name the metric (optimization_key, metric)"
    elif isinstance(e, SyntaxError):
        error.update(type="SyntaxError", message="%s, in line %s of %s" % (error["message"], e.lineno, os.path.basename(e.filename or "")))
    elif isinstance(e, SystemExit):
        error.update(type="FunctionExited", message="the function called sys.exit(%s)" % ("" if e.code is None else _wire.described(e.code)[:400]),
                     remedy="return the metric, or raise an exception")
    elif isinstance(e, OSError) and _full(e):
        error["remedy"] = _full(e)
    elif isinstance(e, ModuleNotFoundError):
        error["remedy"] = "install %s for %s on the nodes, name another interpreter (python=..., as that of a venv), or put the module beside the script" % (e.name, sys.executable)
    error.setdefault("remedy", "the traceback is in its log")
    return error


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: B902 - the function has closed it, or put something else in its place
            pass


def _close_writers():
    tensorboard = sys.modules.get("hops.tensorboard")
    if tensorboard is None:
        return  # nothing was written
    try:
        tensorboard.flush()
    except (OSError, _cluster.ClusterError) as e:
        print("TensorBoard events were not written: %s" % e, file=sys.stderr)


def main():
    """A fresh interpreter for one trial (executor mode spawn): argument 1 is the descriptor of its socket, argument 2 a
    file with the set-up document."""
    from hops import _zygote
    _zygote.die_with_parent()
    with open(sys.argv[2]) as f:
        setup = json.load(f)
    code = run(socket.socket(fileno=int(sys.argv[1])), prepare(setup))
    _flush()
    os._exit(code)


if __name__ == "__main__":
    main()
