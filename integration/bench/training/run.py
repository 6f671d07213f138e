"""What a search adds to its trials: the time between two, and how far many short ones are from no overhead at all.

    python3 integration/bench/training/run.py [--long] [--trials N] [--idle] [HOPS]      HOPS: the program, by default bin/hops; needs a quiet machine

Starts `hops dev`, runs searches of plain Python and prints a row for each: trials of a second on 4 executors (Maggy: 57.8 s for 100, 25 s without
overhead), gaps between trials that do nothing (Maggy: 1,015 ms), trials of a second on 16 slots (Ray Tune: +14 % for 10,000), of which there are 800
(1 minute), 10,000 with --long (11 minutes), or N; and what controller and executors use while four trials run that say nothing (Maggy: 95 % of a core).
--idle: the last alone.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
STUDY = """name: bench
entry: %(here)s/trial.py:train
metric: value
optimizer: {type: random}
space: {x: {type: DOUBLE, range: [0, 1]}}
trials: %(trials)d
executors: %(executors)d
trials_per_executor: %(slots)d
executor_mode: %(mode)s
resources: {memory: 512MiB, vcores: 1}
arguments: {times: %(times)s, pause: %(pause)g}
"""


def cpu(pid):
    fields = open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes(directory, *words):
    """Those of the cluster whose command line has these words."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = open("/proc/%s/cmdline" % pid, "rb").read().split(b"\0")
            if all(w.encode() in command for w in words) and os.fsencode(directory) in open("/proc/%s/environ" % pid, "rb").read():
                found.append(int(pid))
        except OSError:
            pass  # it has ended
    return found


def idle(hops, directory, seconds=30):
    """What the controller and four executors use, in percent of a core, while their trials run and say nothing."""
    times, study, conf = os.path.join(directory, "times"), os.path.join(directory, "study.yaml"), os.path.join(directory, "data", "conf")
    with open(study, "w") as f:
        f.write(STUDY % dict(here=HERE, trials=4, executors=4, slots=1, mode="fork", times=times, pause=10000))
    experiment = subprocess.run([hops, "experiment", "run", "-d", "--conf", conf, study], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    while True:
        shown = subprocess.run([hops, "experiment", "show", "--conf", conf, experiment, "-o", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if shown.returncode == 0 and sum(t.get("epochs") == 3 for t in json.loads(shown.stdout).get("trials") or ()) == 4:
            break
        time.sleep(0.2)
    time.sleep(5)
    whose = {"controller": processes(directory, "controller"), "executors": processes(directory, "hops.executor")}
    before, began = {name: sum(map(cpu, pids)) for name, pids in whose.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    used = {name: 100 * (sum(map(cpu, pids)) - before[name]) / took for name, pids in whose.items()}
    subprocess.run([hops, "experiment", "stop", "--conf", conf, experiment], check=True, stdout=subprocess.DEVNULL)
    print("idle, 4 trials that say nothing: %d controller %.2f %% of a core, %d executors %.2f %% each; in %.0f s" % (
        len(whose["controller"]), used["controller"], len(whose["executors"]), used["executors"] / max(1, len(whose["executors"])), took), flush=True)


def search(hops, directory, dev, trials, executors, slots=1, mode="fork", pause=0.0):
    times, study = os.path.join(directory, "times"), os.path.join(directory, "study.yaml")
    if os.path.exists(times):
        os.remove(times)
    with open(study, "w") as f:
        f.write(STUDY % dict(here=HERE, trials=trials, executors=executors, slots=slots, mode=mode, times=times, pause=pause))
    before, began = cpu(dev.pid), time.monotonic()
    subprocess.run([hops, "experiment", "run", "--conf", os.path.join(directory, "data", "conf"), study], check=True, stdout=subprocess.DEVNULL)
    whole = time.monotonic() - began
    rows = sorted(tuple(map(float, line.split())) for line in open(times))
    if len(rows) != trials:
        sys.exit("%d of %d trials have written when they ran" % (len(rows), trials))
    return rows, whole, cpu(dev.pid) - before


def main():
    arguments = argparse.ArgumentParser(usage="run.py [--long] [--trials N] [--idle] [HOPS]")
    arguments.add_argument("hops", nargs="?", default="bin/hops")
    arguments.add_argument("--long", action="store_true")
    arguments.add_argument("--trials", type=int)
    arguments.add_argument("--idle", action="store_true")
    given = arguments.parse_args()
    hops = os.path.abspath(given.hops)
    many = given.trials or (10000 if given.long else 800)
    directory = tempfile.mkdtemp(prefix="hops-bench-training-")
    log = open(os.path.join(directory, "dev.log"), "w+")
    dev = subprocess.Popen([hops, "dev", "--data", os.path.join(directory, "data"), "--ports", "random", "--gpus", "none"], stdout=log, stderr=log)
    try:
        while not re.search(r"^ready in", open(log.name).read(), re.M):
            if dev.poll() is not None:
                sys.exit("hops dev ended: " + open(log.name).read())
            time.sleep(0.1)
        print("load %s" % " ".join(open("/proc/loadavg").read().split()[:3]))
        for mode in ("fork", "inproc") if not given.idle else ():
            rows, _, used = search(hops, directory, dev, 300, 1, mode=mode)
            gaps = sorted(1000 * (b[0] - a[1]) for a, b in zip(rows, rows[1:]))
            print("gap, %-6s  p50 %5.1f ms  p95 %5.1f  max %6.1f   %.1f ms of the servers' CPU a trial" % (
                mode, gaps[len(gaps) // 2], gaps[len(gaps) * 95 // 100], gaps[-1], 1000 * used / 300), flush=True)
        for what, trials, executors, slots in (("100 x 1 s, 4 executors", 100, 4, 1), ("%d x 1 s, 16 slots of 4" % many, many, 4, 4)) if not given.idle else ():
            rows, whole, used = search(hops, directory, dev, trials, executors, slots, pause=1.0)
            span, ideal = max(b for _, b in rows) - rows[0][0], trials / (executors * slots)
            print("%-30s %6.2f s first line to last, %+.1f %%; %.2f s from the command's start to its end; servers' CPU %.2f s" % (
                what, span, 100 * (span / ideal - 1), whole, used), flush=True)
        idle(hops, directory)
    finally:
        dev.terminate()
        dev.wait()
        shutil.rmtree(directory, ignore_errors=True)


main()
