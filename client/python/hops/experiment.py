"""Experiments under the names of hops-util-py, and search() for all there is.

A call sends the function to the cluster, waits, shows how it goes and returns what the decks promise. One experiment runs at a time per
process. Ctrl-C (in a notebook: interrupt) ends the waiting, not the search, and asks on a terminal; attach() waits again, stop() ends the search,
resume() goes on with one that failed or was stopped.

A script needs no `if __name__ == "__main__":`. Executors import it down to its first search, where the import ends.

local() calls a training function here, without a cluster; begin() and end() record a run of this program itself.

The names of the parameters are those of releases 2.0 to 3.8; map_fun, objective_function (differential_evolution), args_dict (grid_search) and
versioned_resources are those of earlier ones. versioned_resources are local paths, kept in versioned_resources/ of the experiment's directory.
"""
import os
import threading

from hops import _driver, _following, _jobs, _local, _run as _trial_run, _wrapped

Reporter = _trial_run.Reporter
ExperimentError, defaults, store = _following.ExperimentError, _following.defaults, _following.store
_Following = _following.Following


class Direction:
    """Whether the best metric is the largest or the smallest."""

    MAX = "MAX"
    MIN = "MIN"


_running = threading.Lock()


def launch(train_fn=None, args_dict=None, name="no-name", local_logdir=False, description=None, metric_key=None, map_fun=None, versioned_resources=None,
           **options):
    """Run a function once, or once for each element of the equally long lists of args_dict. Returns (directory, outputs); outputs is None for several
    runs."""
    fn = _function(train_fn, map_fun)
    spec = {"optimizer": {"type": "none"}, "kind": "EXPERIMENT", "metric": metric_key or "metric"}
    if args_dict:
        lengths = {k: len(_values(args_dict, k)) for k in _lists(args_dict, "args_dict")}
        if len(set(lengths.values())) != 1 or not all(lengths.values()):
            raise ValueError("the lists of args_dict have different lengths: %s. launch runs the first values of all, then the second ones, and so on; "
                             "for every combination: experiment.grid_search(train_fn, args_dict), or launch(train_fn, util.grid_params(args_dict))" % lengths)
        spec["configurations"] = [dict(zip(args_dict, row)) for row in zip(*(_values(args_dict, k) for k in args_dict))]
        spec["kind"] = "PARALLEL_EXPERIMENTS"
    result = _run(fn, spec, name, description, local_logdir, versioned_resources, options)
    if result is None or args_dict and len(spec["configurations"]) > 1:
        return result and result["directory"], None
    return result["directory"], result.get("best_outputs")


def random_search(train_fn=None, boundary_dict=None, direction=Direction.MAX, samples=10, name="no-name", local_logdir=False, description=None,
                  optimization_key="metric", map_fun=None, versioned_resources=None, **options):
    """Try samples random points within {"name": [low, high]}: two whole numbers give whole numbers, others reals. Returns
    (directory of the best trial, its parameters, its outputs)."""
    spec = {"optimizer": {"type": "random"}, "space": _boundaries(boundary_dict), "trials": samples, "direction": _direction(direction), "metric": optimization_key}
    return _best(_run(_function(train_fn, map_fun), spec, name, description, local_logdir, versioned_resources, options))


def grid_search(train_fn=None, grid_dict=None, direction=Direction.MAX, name="no-name", local_logdir=False, description=None,
                optimization_key="metric", map_fun=None, args_dict=None, versioned_resources=None, **options):
    """Try every combination of {"name": [values]}. Returns (directory of the best trial, its parameters, its outputs)."""
    grid = _lists(grid_dict or args_dict or {}, "grid_dict")
    space = {k: {"type": "CATEGORICAL", "values": _values(grid, k)} for k in grid}
    spec = {"optimizer": {"type": "grid"}, "space": space, "direction": _direction(direction), "metric": optimization_key}
    return _best(_run(_function(train_fn, map_fun), spec, name, description, local_logdir, versioned_resources, options))


def differential_evolution(train_fn=None, boundary_dict=None, direction=Direction.MAX, generations=4, population=6, mutation=0.5, crossover=0.7, name="no-name",
                           local_logdir=False, description=None, optimization_key="metric", objective_function=None, map_fun=None, versioned_resources=None,
                           cleanup_generations=None, **options):
    """Differential evolution (Storn and Price, 1997) within {"name": [low, high]}; two texts are two categories. Returns (directory of the best trial, its
    parameters, its outputs). ValueError: population is not above 3, or generations not above 1."""
    if population <= 3:
        raise ValueError("population is %r: differential evolution needs more than 3" % (population,))
    if generations <= 1:
        raise ValueError("generations is %r: differential evolution needs more than 1" % (generations,))
    if cleanup_generations:
        raise NotImplementedError("not supported: cleanup_generations; `hops experiment prune` removes what is old")
    optimizer = {"type": "differential_evolution", "generations": generations, "population": population, "mutation": mutation, "crossover": crossover}
    spec = {"optimizer": optimizer, "space": _boundaries(boundary_dict, True), "trials": generations * population, "direction": _direction(direction),
            "metric": optimization_key}
    return _best(_run(_function(train_fn or objective_function, map_fun), spec, name, description, local_logdir, versioned_resources, options))


def mirrored(train_fn=None, name="no-name", local_logdir=False, description=None, evaluator=False, metric_key=None, map_fun=None, versioned_resources=None, **options):
    """Run a function of TensorFlow in all executors together: TF_CONFIG makes MultiWorkerMirroredStrategy() of each a part of one gang. With executors=1 it is one
    process without TF_CONFIG, for MirroredStrategy(). evaluator: one more executor gets the role evaluator. Returns (directory, what the chief returned).
    framework="torch", "horovod", "jax" or "plain" starts a gang of that kind instead."""
    return _gang(_function(train_fn, map_fun), name, local_logdir, description, evaluator, metric_key, versioned_resources, options)


def collective_all_reduce(train_fn=None, name="no-name", local_logdir=False, versioned_resources=None, description=None, evaluator=False, metric_key=None, map_fun=None,
                          **options):
    """mirrored() as it was called before release 1.4. Returns the directory alone, as it did. framework="horovod" is for functions that call hvd.init()."""
    if versioned_resources is not None and isinstance(versioned_resources, str) and description is None and not os.path.exists(versioned_resources):
        versioned_resources, description = None, versioned_resources  # the fourth argument of 1.1 to 1.3
    return _gang(_function(train_fn, map_fun), name, local_logdir, description, evaluator, metric_key, versioned_resources, options)[0]


allreduce = collective_all_reduce


def parameter_server(train_fn=None, name="no-name", local_logdir=False, description=None, evaluator=False, metric_key=None, map_fun=None, versioned_resources=None,
                     num_ps=None, **options):
    """Run a function of TensorFlow with parameter servers: of the executors num_ps (default: NUM_TF_PS, or 1) hold variables and get no GPU's work, the others train;
    the chief is one of them. Returns (directory, what the chief returned)."""
    from hops import util
    num_ps = util.num_param_servers() or 1 if num_ps is None else num_ps
    executors = options.get("executors", defaults["executors"])
    if num_ps < 1 or num_ps >= executors:
        raise ValueError("num_ps is %r with %d executors: there must be at least one parameter server, and a worker" % (num_ps, executors))
    if evaluator and executors - num_ps < 3:
        raise ValueError("an evaluator needs at least 3 executors that are no parameter servers; there are %d" % (executors - num_ps))
    return _gang(_function(train_fn, map_fun), name, local_logdir, description, evaluator, metric_key, versioned_resources,
                 {**options, "framework": "parameter_server"}, num_ps)


def gang(fn, spec, name="no-name", description=None, framework="tensorflow", members=None, evaluator=False, parameter_servers=0, versioned_resources=None, **options):
    """Run one function as a gang of members executors. Returns the result document."""
    members = options.pop("executors", None) or defaults["executors"] if members is None else members
    spec = {"optimizer": {"type": "none"}, "executors": members, **spec}
    if members > 1:
        spec["distributed"] = {"framework": framework, "workers": members - parameter_servers - bool(evaluator)}
        if parameter_servers:
            spec["distributed"]["parameter_servers"] = parameter_servers
        if evaluator:
            spec["distributed"]["evaluator"] = True
        for key in ("min_workers", "restarts"):
            if key in options:
                spec["distributed"][key] = options.pop(key)
    return _run(fn, spec, name, description, False, versioned_resources, options)


def _gang(fn, name, local_logdir, description, evaluator, metric_key, versioned, options, num_ps=0):
    options = dict(options)
    members = options.pop("executors", defaults["executors"])
    framework = options.pop("framework", "tensorflow")
    if evaluator and members - num_ps < 2:
        raise ValueError("an evaluator needs an executor of its own: there are %d" % members)
    if local_logdir:
        fn = _wrapped.Function(fn, {"local_logdir": True})
    result = gang(fn, {"kind": "EXPERIMENT", "metric": metric_key or "metric"}, name, description, framework, members, evaluator, num_ps, versioned, **options)
    return (None, None) if result is None else (result["directory"], result.get("best_outputs"))


def begin(name="no-name", local_logdir=False, versioned_resources=None, description=None, project=None):
    """Record what this program does from here to end() as an experiment: it gets a directory, in which tensorboard.logdir() and checkpoints lie. Returns the
    directory. RuntimeError: an experiment runs in this process already."""
    _trial_run.submitting("begin()")
    if not _running.acquire(blocking=False):
        raise RuntimeError("an experiment is already running in this process: one at a time")
    try:
        return _driver.begin(name, local_logdir, versioned_resources, description, project)
    except BaseException:
        _running.release()
        raise


def end(metric=None):
    """End what begin() began, with its metric. Returns the directory. A program that ends without it leaves the state KILLED."""
    begun = _driver.begun()
    try:
        return _driver.end(metric)
    finally:
        if begun and not _driver.begun():
            _running.release()


def search(train_fn, spec, name="no-name", description=None, **options):
    """Run an experiment from its specification (docs/reference/executor-protocol.md, "The experiment in a job"); entry and
    code are made from the function. Returns the result document, with "directory"; with detach=True None, at once."""
    if not isinstance(spec, dict):
        raise TypeError("the specification of a search is a dict, not %.100r" % (spec,))
    versioned = options.pop("versioned_resources", None)
    return _run(train_fn, spec, name, description, False, versioned, options)


def _function(fn, alias):
    fn = fn or alias
    if fn is None:
        raise TypeError("the training function is missing")
    return fn


def _lists(lists, name):
    if not isinstance(lists, dict):
        raise TypeError("%s is a %s, not a dict: {\"name\": [values]}" % (name, type(lists).__name__))
    return lists


def _values(lists, key):
    values = lists[key]
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ValueError("%s is %r, not a list of values" % (key, values))
    return [_jobs._number(v) if hasattr(v, "item") else v for v in values]  # of an array they are numpy's


def _boundaries(boundary_dict, texts=False):
    """The space of {"name": [low, high]}; two texts are categories if they may be."""
    if not boundary_dict:
        raise ValueError("boundary_dict is missing: {\"name\": [low, high]}")
    space = {}
    for key in _lists(boundary_dict, "boundary_dict"):
        bounds = _values(boundary_dict, key)
        if len(bounds) != 2:
            raise ValueError("boundary_dict[%r] is not [low, high]" % key)
        if texts and all(isinstance(b, str) for b in bounds):
            space[key] = {"type": "CATEGORICAL", "values": bounds}
            continue
        if not all(isinstance(b, (int, float)) and not isinstance(b, bool) for b in bounds):
            raise ValueError("boundary_dict[%r] is %r, not two numbers" % (key, bounds))
        whole = all(isinstance(b, int) for b in bounds)
        space[key] = {"type": "INTEGER" if whole else "DOUBLE", "range": bounds}
    return space


def _direction(direction):
    text = str(direction).lower()
    if text not in ("max", "min"):
        raise ValueError('direction %r is neither "max" nor "min"' % (direction,))
    return text


def _best(result):
    return (None, None, None) if result is None else (result.get("best_dir"), result.get("best_config"), result.get("best_outputs"))


def _run(fn, spec, name, description, local_logdir, versioned, options):
    _trial_run.submitting("a search")
    _Following.check(options)
    spec, options = dict(spec), dict(options)
    if local_logdir:  # tensorboard.logdir() reads it
        if not isinstance(fn, _wrapped.Function):
            fn = _wrapped.Function(fn)
        fn.given["local_logdir"] = True
    detach = options.pop("detach", False)
    begun = []

    def begin():
        begun.append(_Following.submit(fn, spec, name, description, options, versioned))
        return begun[0]
    if detach:
        _alone(begin, lambda f: None)
        if not options.get("quiet"):
            print("%s was submitted; experiment.attach(%r) waits for it" % (begun[0].id, begun[0].id))
        return None
    return _alone(begin)


def _alone(begin, then=None):
    if not _running.acquire(blocking=False):
        raise RuntimeError("an experiment is already running in this process: one at a time")
    try:
        return (then or _Following.wait)(begin())
    finally:
        _running.release()


def wait(experiment, quiet=False, logs=False):
    """Wait for an experiment that runs, by its id, and return its result document, with "directory". logs: show what the trials print."""
    return _alone(lambda: _Following(_job_of(experiment), quiet, logs=logs))


attach = wait


def stop(experiment, reason=""):
    """End an experiment: what its trials found is kept, its result is written, its state is KILLED. Returns at once. ExperimentError:
    there is none of that id that runs."""
    running = _Following(_job_of(experiment), True)
    state = running.state()
    if state in _jobs.FINAL:
        raise ExperimentError("%s does not run: it is %s" % (experiment, state))
    running.stop(reason)


def resume(experiment, queue=None, quiet=False, logs=False):
    """Go on with an experiment that failed or was stopped, from its journal: trials that ended are kept, trials that were cut
    short go on from their checkpoints. Waits, and returns the result document, with "directory"."""
    _trial_run.submitting("resume()")
    return _alone(lambda: _Following.resume(_job_of(experiment), queue, quiet, logs))


def local(train_fn, params=None, budget=None, seed=0, arguments=None, directory=None, **given):
    """Call a training function here as a trial would be: parameters by name, a reporter that prints, checkpoints and event
    files in a local directory (default: HOPS_LOCAL_DIR, or a new temporary one). model=, dataset= and hparams= are given to it as a search or a gang
    would. Returns what the function returns."""
    from hops import _trial, checkpoint
    trial = _local.Trial(params, budget, seed, directory)
    before, _trial_run._current = _trial_run._current, trial
    called = _wrapped.Function(train_fn, given) if given else train_fn
    try:
        result = called(**_trial.bind(called, trial, arguments or {}))
        checkpoint.finish()
        return result
    finally:
        _local.flush()
        _trial_run._current = before


def _job_of(experiment):
    """The job's id, of either id: an experiment is <application>_<run>."""
    text = str(experiment).rstrip("/").rsplit("/", 1)[-1]
    return text[:-2] if text.startswith("application_") and text.count("_") == 3 and text.endswith("_1") else text


__all__ = ["Direction", "ExperimentError", "defaults", "launch", "random_search", "grid_search", "differential_evolution", "mirrored", "parameter_server",
           "collective_all_reduce", "allreduce", "gang", "begin", "end", "search", "wait", "attach", "stop", "resume", "local", "Reporter"]
