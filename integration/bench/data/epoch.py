"""What a shuffled epoch over many small files costs: hops.data beside one OPEN for each file and beside HDFS through pyarrow.

    epoch.py fill DIRECTORY [--files 100000] [--size 4096]        makes the files below a local directory, for hops fs -put
    epoch.py run [--hops DIRECTORY] [--hdfs hdfs://HOST:PORT/DIRECTORY] [--rounds 3] [--files 0] [--server PID,PID]

run reads in turns, round by round, each side in a process of its own, and prints a line for each and the ratio of the medians:

    hops       hops.data, the cluster of HADOOP_CONF_DIR
    open       the same files with one OPEN of WebHDFS each, by 8 threads
    pyarrow-1  pyarrow's HadoopFileSystem over libhdfs, a file after the other
    pyarrow-N  the same with N threads

Of the sides that read file by file the first --few of the order are measured.

pyarrow needs the package, ARROW_LIBHDFS_DIR, CLASSPATH and JAVA_HOME, as its documentation says. CPU is user and system time in
microseconds a file, that of --server (processes of the servers on this machine) and of the reader. Every content is checked.
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "client", "python"))

# The content of file number i is its number, over and over.


def content(i, size):
    return (i.to_bytes(4, "little") * (size // 4 + 1))[:size]


def fill(o):
    for i in range(o.files):
        directory = os.path.join(o.directory, "%03d" % (i % 100))
        if i < 100:
            os.makedirs(directory)
        with open(os.path.join(directory, "%08d.bin" % i), "wb") as f:
            f.write(content(i, o.size))


def check(name, found):
    i = int(name.rsplit("/", 1)[1].split(".")[0])
    if found != content(i, len(found)) or not found:
        sys.exit("%s has %d bytes that are not its own" % (name, len(found)))


def cpu(pids):
    """Seconds that processes have used."""
    total = 0.0
    for pid in pids:
        with open("/proc/%s/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def own():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def measure(o, read):
    """read() is a generator of (name, bytes)."""
    pids = [p for p in o.server.split(",") if p]
    server, client, began, n, size = cpu(pids), own(), time.perf_counter(), 0, 0
    for name, found in read():
        if n % 16 == 0:
            check(name, found)
        n += 1
        size += len(found)
    took = time.perf_counter() - began
    print(json.dumps({"files": n, "bytes": size, "seconds": took, "rate": n / took, "client_us": (own() - client) / n * 1e6,
                      "server_us": (cpu(pids) - server) / n * 1e6 if pids else None}))


def hops(o):
    from hops import data
    d = data.Dataset(o.path)

    def read():
        with d.epoch(seed=o.seed, threads=o.threads) as e:
            for i, item in enumerate(e):
                if o.files and i == o.files:
                    return
                yield item
    measure(o, read)


def single(o):
    from hops import data, hdfs
    d, fs = data.Dataset(o.path), hdfs.get_fs()
    names = d.names()
    random.Random(o.seed).shuffle(names)
    names = names[:o.few]

    def read():
        with ThreadPoolExecutor(o.threads) as pool:
            yield from zip(names, pool.map(fs.read, names))
    measure(o, read)


def arrow(o):
    from pyarrow import fs as arrow_fs
    host, _, directory = o.path[len("hdfs://"):].partition("/")
    host, _, port = host.partition(":")
    fs = arrow_fs.HadoopFileSystem(host, int(port or 8020))
    names = [f.path for f in fs.get_file_info(arrow_fs.FileSelector("/" + directory, recursive=True)) if f.is_file]
    random.Random(o.seed).shuffle(names)
    names = names[:o.few]

    def one(name):
        with fs.open_input_stream(name, buffer_size=0) as f:
            return f.read()

    def read():
        for name in names[:500]:  # the JIT's first steps are not measured
            one(name)
        if o.threads == 1:
            yield from ((n, one(n)) for n in names)
            return
        with ThreadPoolExecutor(o.threads) as pool:
            yield from zip(names, pool.map(one, names))
    measure(o, read)


def run(o):
    sides = []
    if o.hops:
        sides += [("hops", "hops", o.hops, 4), ("open", "open", o.hops, 8)]
    if o.hdfs:
        sides += [("pyarrow-1", "pyarrow", o.hdfs, 1), ("pyarrow-%d" % o.threads, "pyarrow", o.hdfs, o.threads)]
    found = {name: [] for name, _, _, _ in sides}
    for turn in range(o.rounds):
        for name, side, path, threads in sides:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), side, path, "--threads", str(threads), "--seed", str(turn), "--files", str(o.files), "--few", str(o.few),
                                   "--server", o.server if side != "pyarrow" else o.hdfs_server], stdout=subprocess.PIPE, check=True)
            r = json.loads(done.stdout.splitlines()[-1])
            found[name].append(r)
            print("%-10s round %d: %8.0f files/s, client %6.1f us, servers %s us a file, %d files, load %.1f" % (
                name, turn + 1, r["rate"], r["client_us"], "%6.1f" % r["server_us"] if r["server_us"] is not None else "?", r["files"], os.getloadavg()[0]), flush=True)
    middle = {name: statistics.median(r["rate"] for r in rs) for name, rs in found.items()}
    for name, rate in middle.items():
        if name != "hops" and "hops" in middle:
            print("hops / %-10s %.1fx" % (name, middle["hops"] / rate))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["fill", "run", "hops", "open", "pyarrow"])
    p.add_argument("path", nargs="?")
    p.add_argument("--hops")
    p.add_argument("--hdfs")
    p.add_argument("--files", type=int, default=0, help="how many files; 0: all (fill: 100000)")
    p.add_argument("--few", type=int, default=5000)
    p.add_argument("--size", type=int, default=4096)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=16)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--server", default="", help="processes of hops' servers")
    p.add_argument("--hdfs-server", default="", help="processes of HDFS' servers")
    o = p.parse_args()
    if o.what == "fill":
        o.files, o.directory = o.files or 100_000, o.path
        return fill(o)
    return {"run": run, "hops": hops, "open": single, "pyarrow": arrow}[o.what](o)


if __name__ == "__main__":
    main()
