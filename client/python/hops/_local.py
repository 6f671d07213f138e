"""A training function without a cluster: what a trial's process has, in a local directory.

reporter, checkpoint and tensorboard ask here when no trial runs, so that a function runs unchanged on a laptop, in a
notebook and in a test. The directory is HOPS_LOCAL_DIR, or a new one below the system's directory for temporary files.
In a directory that was named, load() finds the newest checkpoint of an earlier run, as a trial that is resumed would.
"""
import atexit
import os
import shutil
import sys
import tempfile

from hops import _run, dist


class Files:
    """What checkpoints and event files need of WebHDFS, on the local disk."""

    def create(self, path, data=b"", overwrite=False):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb" if overwrite else "xb") as f:
            if isinstance(data, (bytes, bytearray, memoryview)):
                f.write(data)
            else:
                f.writelines(data)

    def append(self, path, data):
        with open(path, "ab") as f:
            f.write(data)

    def read(self, path, offset=0, length=None):
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read() if length is None else f.read(length)

    def list(self, path):
        return [{"pathSuffix": e.name, "type": "DIRECTORY" if e.is_dir() else "FILE", "length": e.stat().st_size} for e in os.scandir(path)]

    def exists(self, path):
        return os.path.exists(path)

    def delete(self, path, recursive=False):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)
        else:
            return False
        return True

    def rename(self, source, destination):
        if os.path.exists(destination):
            return False
        os.rename(source, destination)
        return True


class Trial(_run.Trial):
    """A trial that nobody stops and that reports to the screen."""

    def __init__(self, params=None, budget=None, seed=0, directory=None):
        named = directory or os.environ.get("HOPS_LOCAL_DIR")
        self.directory = os.path.abspath(named) if named else tempfile.mkdtemp(prefix="hops-local-")
        checkpoints = os.path.join(self.directory, "checkpoints")
        order = {"trial": "0001", "attempt": 1, "params": dict(params or {}), "budget": {"to": budget or 0}, "seed": seed,
                 "dirs": {"checkpoints": checkpoints, "tensorboard": self.directory, "trial": self.directory}}
        order["checkpoints"] = [{"step": n, "uri": os.path.join(checkpoints, "step-%d" % n)} for n in _steps(checkpoints)]
        if order["checkpoints"]:
            order["resume"] = order["checkpoints"][-1]
        super().__init__(order, None, Files())
        try:
            self.rank = dist._place(os.environ)[0]  # under torchrun: rank 0 saves, as in a gang
        except ValueError:
            pass  # RANK is somebody else's word
        print("hops: no trial runs here; checkpoints and event files go to %s" % self.directory, file=sys.stderr)

    def _report(self, value, step):
        print("step %d: %.6g" % (step, value), flush=True)

    def log(self, message):
        print(message, flush=True)

    def unnamed(self, final):
        # Nobody writes late here, and what a process left that was killed is to give way.
        self.fs.delete(final + ".tmp", recursive=True)
        return final + ".tmp"

    def commit_checkpoint(self, step, uri, files, metric):
        # It has its final name; nobody else is to know.
        self.committed = [c for c in self.committed if c["step"] != step] + [{"step": step, "uri": uri, "metric": metric}]


def _steps(directory):
    """Steps of the checkpoints in a directory. One without a manifest is none."""
    if not os.path.isdir(directory):
        return []
    return sorted(int(n[5:]) for n in os.listdir(directory)
                  if n.startswith("step-") and n[5:].lstrip("-").isdigit() and os.path.exists(os.path.join(directory, n, "MANIFEST.json")))


def flush():
    """Wait for the checkpoint that is being saved, and write the event files' scalars."""
    from hops import checkpoint, tensorboard
    checkpoint.finish(quiet=True)
    tensorboard.flush()


atexit.register(flush)
