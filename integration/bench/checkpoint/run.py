"""What a checkpoint costs: hops.checkpoint.save() into a cluster beside torch.save() to a local file of the same disk, in one run.

    python3 integration/bench/checkpoint/run.py [--mb 256] [--rounds 7] [--hops bin/hops] [--replicas 1,3]

Starts `hops dev` with three datanodes, whose data lie on one disk: with three replicas that disk writes everything three times. Each
round does every row once, so that what else the machine does falls on all of them; every tensor changes before each row. A row's
percentage compares it with another one of its own round: the median of these. CPU is that of this process and of the cluster, seconds a
save. Without torch the tensors are numpy's and the local file is numpy.save's; arrays of numpy are hashed twice in a save that is waited for,
because nothing else would tell that another thread changes one.
"""
import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.join(ROOT, "client", "python")]

from hops import _local, _run, _webhdfs, checkpoint  # noqa: E402


class Files(_webhdfs.WebHDFS):
    """The cluster's files, with a number of replicas of our own."""

    replicas = 1

    def create(self, path, data=b"", overwrite=False, **more):
        super().create(path, data, overwrite=overwrite, **dict(more, replication=self.replicas))


class Trial(_run.Trial):
    """A trial of this process, whose controller takes everything."""

    def __init__(self, root, fs):
        super().__init__({"trial": "0001", "attempt": 1, "params": {},
                          "dirs": {"checkpoints": root + "/0001/checkpoints/1", "tensorboard": root, "blobs": root + "/.blobs"}}, None, fs)

    commit_checkpoint = _local.Trial.commit_checkpoint


class Cluster:
    """`hops dev` with its data in a directory."""

    def __init__(self, hops, directory, datanodes):
        self.log = open(os.path.join(directory, "dev.log"), "w+")
        self.process = subprocess.Popen([hops, "dev", "--data", os.path.join(directory, "data"), "--ports", "random", "--gpus", "none", "--datanodes", str(datanodes)],
                                        stdout=self.log, stderr=self.log)
        while True:
            text = open(self.log.name).read()
            if re.search(r"^ready in", text, re.M):
                break
            if self.process.poll() is not None:
                sys.exit("hops dev ended: " + text)
            time.sleep(0.1)
        os.environ["HADOOP_CONF_DIR"] = os.path.join(directory, "data", "conf")

    def cpu(self):
        fields = open("/proc/%d/stat" % self.process.pid).read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


class State:
    """Tensors of 4 MiB, as of a small model."""

    def __init__(self, mb):
        try:
            import torch
            self.torch, self.library = torch, "torch %s" % torch.__version__
            torch.manual_seed(0)
            self.tensors = {"layer%d.weight" % i: torch.randn(1024, 1024) for i in range(mb // 4)}
        except ImportError:
            import numpy
            self.torch, self.numpy, self.library = None, numpy, "numpy %s" % numpy.__version__
            self.tensors = {"layer%d.weight" % i: numpy.random.default_rng(i).standard_normal((1024, 1024), "f4") for i in range(mb // 4)}

    def change(self):
        for t in self.tensors.values():
            t += 1

    def buffers(self):
        return [memoryview(t.numpy() if self.torch else t).cast("B") for t in self.tensors.values()]

    def save(self, f):
        if self.torch:
            self.torch.save(self.tensors, f)
        else:
            for t in self.tensors.values():
                self.numpy.save(f, t)


def own_cpu():
    t = os.times()
    return t.user + t.system


def touch_memory(directory):
    """The memory of a virtual machine costs its first user a microsecond a page: pay before, for files and for processes."""
    name = os.path.join(directory, "touch")
    piece = bytes(16 << 20)
    with open(name, "wb") as f:
        for _ in range(256):
            f.write(piece)
    os.remove(name)
    held = [bytearray(64 << 20) for _ in range(24)]
    for b in held:
        b[::4096] = bytes(len(b) // 4096)


def main():
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--mb", type=int, default=256)
    ask.add_argument("--rounds", type=int, default=7)
    ask.add_argument("--hops", default=os.path.join(ROOT, "bin", "hops"))
    ask.add_argument("--replicas", default="1,3")
    ask.add_argument("--directory", help="where the local files and the cluster's lie; a new one there", default=None)
    ask.add_argument("--only", help="rows whose names match", default="")
    args = ask.parse_args()
    directory = tempfile.mkdtemp(prefix="hops-bench-checkpoint-", dir=args.directory)
    replicas = [int(n) for n in args.replicas.split(",")]
    cluster = Cluster(os.path.abspath(args.hops), directory, 3)
    try:
        touch_memory(directory)
        measure(args, directory, cluster, replicas)
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


def measure(args, directory, cluster, replicas):
    fs, state = Files(), State(args.mb)
    root = "/user/%s/bench" % fs.user
    _run.set_current(Trial(root, fs))
    rows, step = {}, [0]  # name -> [(seconds, CPU of ours, CPU of the cluster)]

    def note(name, call):
        if args.only and not re.search(args.only, name):
            return
        state.change()
        ours, theirs, began = own_cpu(), cluster.cpu(), time.perf_counter()
        took = call()
        took = time.perf_counter() - began if took is None else took
        rows.setdefault(name, []).append((took, own_cpu() - ours, cluster.cpu() - theirs))

    def local(write, sync):
        name = os.path.join(directory, "local")
        with open(name, "wb") as f:
            write(f)
            f.flush()
            if sync:
                os.fsync(f.fileno())
        return None

    def plain(f):
        for b in state.buffers():
            f.write(b)

    def save(n):
        fs.replicas, step[0] = n, step[0] + 1
        checkpoint.save(state.tensors, step[0])

    def stall(n):
        """The training goes on after so long; what is left is waited for outside of the measurement."""
        fs.replicas, step[0] = n, step[0] + 1
        began = time.perf_counter()
        handle = checkpoint.save(state.tensors, step[0], wait=False)
        took = time.perf_counter() - began
        handle.wait()
        return took

    def clean():
        if os.path.exists(os.path.join(directory, "local")):
            os.remove(os.path.join(directory, "local"))
        for c in checkpoint.list()[:-1]:
            fs.delete(c["directory"], recursive=True)
        blobs = {f["blob"] for c in checkpoint.list()[-1:] for f in checkpoint._manifest(fs, c["directory"])["files"] if f.get("blob")}
        if fs.exists(root + "/.blobs"):
            for d in fs.list(root + "/.blobs"):
                for b in fs.list(root + "/.blobs/" + d["pathSuffix"]):
                    if b["pathSuffix"] not in blobs:
                        fs.delete("%s/.blobs/%s/%s" % (root, d["pathSuffix"], b["pathSuffix"]))
        os.sync()
        time.sleep(0.5)  # the datanodes delete, and the disk comes to rest

    library = state.library.split()[0]
    against = {}
    for k in range(args.rounds + 1):  # the first one warms up
        if k == 1:
            rows.clear()
            load = os.getloadavg()[0]
        note("%s.save, local" % library, lambda: local(state.save, False))
        clean()
        note("%s.save, local, fsync" % library, lambda: local(state.save, True))
        clean()
        note("plain write, fsync", lambda: local(plain, True))
        clean()
        for n in replicas:
            name = "hops save, %d replica%s" % (n, "s" * (n > 1))
            note(name, lambda n=n: save(n))
            clean()
            note("stall of wait=False, %d" % n, lambda n=n: stall(n))
            clean()
            against["stall of wait=False, %d" % n] = [name]
            against[name] = ["%s.save, local" % library, "%s.save, local, fsync" % library]
    print("%d MB in tensors of 4, %s, %d rounds, load %.1f to %.1f, %d cores, one disk" % (
        args.mb, state.library, args.rounds, load, os.getloadavg()[0], os.cpu_count()))
    for name, found in rows.items():
        seconds = [f[0] for f in found]
        line = "%-26s median %.3f s, best %.3f, worst %.3f, CPU %.2f + %.2f s" % (
            name, statistics.median(seconds), min(seconds), max(seconds), statistics.median(f[1] for f in found), statistics.median(f[2] for f in found))
        for other in against.get(name, ()):
            if other in rows:
                pairs = [(s[0] / o[0]) for s, o in zip(found, rows[other])]
                share = statistics.median(pairs)
                line += "; %3.0f %% of %s" % (100 * share if name.startswith("stall") else 100 / share, other + ("'s time" if name.startswith("stall") else "'s rate"))
        print(line)


main()
