"""TensorBoard of the running trial: what a training function writes here, or into logdir(), TensorBoard can show.

Metrics that reach reporter.broadcast are written by the executor; scalar() is for everything else.
"""
import posixpath

from hops import _cluster, _events, _run, _webhdfs

_writers = {}


def logdir():
    """Directory of the trial's event files, in the cluster's filesystem."""
    return _run.current().logdir


def scalar(tag, value, step):
    """Write one scalar into the trial's event file of this function."""
    trial = _run.current()
    writer = _writers.get(trial.logdir)
    if writer is None:
        name = _events.file_name() + ".user-%d" % trial.attempt
        writer = _writers[trial.logdir] = _webhdfs.Appender(trial.fs, posixpath.join(trial.logdir, name))
        writer.add(_events.header())
    writer.add(_events.scalar(tag, _run.number(value), step))


def flush():
    """Write what scalar() has kept. The executor does it at the end of a trial."""
    for writer in _writers.values():
        writer.flush()


def visualize(hdfs_root_logdir):
    """The command that shows a directory of event files."""
    return "tensorboard --logdir %s" % (_cluster.default_fs().rstrip("/") + hdfs_root_logdir)


def interactive_debugger():
    raise NotImplementedError("not supported: TensorFlow's debugger")


non_interactive_debugger = interactive_debugger
