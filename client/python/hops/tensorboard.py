"""TensorBoard of the running trial: what a training function writes here, or into logdir(), TensorBoard can show.

Metrics that reach reporter.broadcast are written by the executor; scalar() is for everything else.
"""
import os
import posixpath
import shutil
import tempfile

from hops import _cluster, _events, _run, _webhdfs

_writers = {}
_locals = {}  # local directories by the trial's own


def logdir():
    """Directory of the trial's event files, in the cluster's filesystem; with local_logdir=True one on this machine, whose files are written there when
    the trial ends."""
    trial = _run.current()
    if not getattr(trial, "local_logdir", False):
        return trial.logdir
    if trial.logdir not in _locals:
        made = tempfile.mkdtemp(prefix="hops-logdir-")
        if _locals.setdefault(trial.logdir, made) != made:
            os.rmdir(made)  # another thread was faster
    return _locals[trial.logdir]


def upload(local, directory, fs):
    """Copy what lies in a local directory into one of the filesystem, and remove it here."""
    for folder, _, names in os.walk(local):
        for name in sorted(names):
            full = os.path.join(folder, name)
            with open(full, "rb") as f:
                fs.create(posixpath.join(directory, os.path.relpath(full, local).replace(os.sep, "/")), f.read(), overwrite=True)
    shutil.rmtree(local, ignore_errors=True)


def scalar(tag, value, step):
    """Write one scalar into the trial's event file of this function."""
    trial = _run.current()
    writer = _writers.get(trial.logdir)
    if writer is None:
        name = _events.file_name() + ".user-%d" % trial.attempt
        made = _webhdfs.Appender(trial.fs, posixpath.join(trial.logdir, name))
        made.add(_events.header())
        writer = _writers.setdefault(trial.logdir, made)  # another thread may have been faster
    writer.add(_events.scalar(tag, _run.number(value), step))


def flush():
    """Write what scalar() has kept, and what lies in local directories. The executor does it at the end of a trial."""
    for writer in list(_writers.values()):
        writer.flush()
    for directory, local in list(_locals.items()):
        del _locals[directory]
        upload(local, directory, _run.current().fs)


def visualize(hdfs_root_logdir):
    """Print and return the commands that show a directory of event files, as that of an experiment."""
    from hops import hdfs
    path = hdfs.abs_path(hdfs_root_logdir)
    text = "hops fs -get %s run && tensorboard --logdir run\n# or, with fsspec and requests installed:\ntensorboard --logdir webhdfs://%s:%d%s" % (
        path, *_cluster.split(_cluster.webhdfs()[0]), path)
    print(text)
    return text


def interactive_debugger():
    raise NotImplementedError("not supported: TensorFlow 1's debugger, which TensorFlow 2 does not have any more; use tf.debugging.enable_check_numerics")


def non_interactive_debugger():
    raise NotImplementedError("not supported: TensorFlow 1's debugger, which TensorFlow 2 does not have any more; use "
                              "tf.debugging.experimental.enable_dump_debug_info(tensorboard.logdir())")
