"""How fast checkpoints are: save() into the cluster that HADOOP_CONF_DIR names, beside torch.save to a local file in the same run.

    python3 tests/bench_checkpoint.py [MB] [rounds]

Without torch the state is arrays of bytes from the standard library, and the local file is written plainly.
"""
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE)]

from hops import _local, _run, _webhdfs, checkpoint  # noqa: E402

MB = int(sys.argv[1]) if len(sys.argv) > 1 else 256
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 5


class Trial(_run.Trial):
    """A trial of this process, whose controller takes everything."""

    def __init__(self, root, fs):
        super().__init__({"trial": "0001", "attempt": 1, "params": {}, "dirs": {"checkpoints": root + "/0001/checkpoints/1", "tensorboard": root, "blobs": root + "/.blobs"}},
                         None, fs)

    commit_checkpoint = _local.Trial.commit_checkpoint


def state():
    try:
        import torch
    except ImportError:
        return {"%04d.bin" % i: bytearray(os.urandom(1 << 20)) * 4 for i in range(MB // 4)}, None
    torch.manual_seed(0)
    return {"layer%d.weight" % i: torch.randn(1024, 1024) for i in range(MB // 4)}, torch


def timed(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def main():
    fs = _webhdfs.WebHDFS()
    root = "/user/%s/bench-checkpoint-%d" % (fs.user, os.getpid())
    _run.set_current(Trial(root, fs))
    tensors, torch = state()
    rows, step = {}, 0

    def note(name, seconds):
        rows.setdefault(name, []).append(seconds)

    def local(sync):
        with tempfile.NamedTemporaryFile() as f:
            if torch:
                torch.save(tensors, f)
            else:
                f.writelines(tensors.values())
            f.flush()
            if sync:
                os.fsync(f.fileno())

    def change(names):
        for k in names:
            if torch:
                tensors[k].add_(1)
            else:
                tensors[k][0] = (tensors[k][0] + 1) % 256

    names = sorted(tensors)
    try:
        for _ in range(ROUNDS):
            change(names)
            note("local", timed(lambda: local(False)))
            note("local, fsync", timed(lambda: local(True)))
            step += 1
            note("save", timed(lambda: checkpoint.save(tensors, step)))
            change(names)
            step += 1
            begun = time.perf_counter()
            handle = checkpoint.save(tensors, step, wait=False)
            note("stall, wait=False", time.perf_counter() - begun)
            handle.wait()
            note("until committed", time.perf_counter() - begun)
            step += 1
            change(names[:len(names) // 8])
            note("save, 1/8 changed", timed(lambda: checkpoint.save(tensors, step)))
            note("load", timed(checkpoint.load))
            for c in checkpoint.list()[:-1]:
                fs.delete(c["directory"], recursive=True)
    finally:
        fs.delete(root, recursive=True)
    base = {"save": "local", "stall, wait=False": "save", "until committed": "save", "save, 1/8 changed": "save", "load": "local", "local, fsync": "local"}
    print("%d MB, %s, %d rounds, load %.1f" % (MB, "torch %s" % torch.__version__ if torch else "no torch", ROUNDS, os.getloadavg()[0]))
    for name, seconds in rows.items():
        median = statistics.median(seconds)
        against = "" if name not in base else "  time is %3.0f %% of %s" % (100 * median / statistics.median(rows[base[name]]), base[name])
        print("%-20s median %.3f s, best %.3f, %5.0f MB/s%s" % (name, median, min(seconds), MB * 1.048576 / median, against))


main()
