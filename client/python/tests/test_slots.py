"""Several trials at once in one executor, and trials one after the other in one process."""
import os
import time
import unittest

import harness


class Slots(harness.ExecutorCase):
    FUNCTIONS = """
import os, socket, time

def meets(lr):
    # Each trial waits until two of them run.
    mine = os.path.join(os.environ["HOPS_WORK_DIR"], "running-%d" % os.getpid())
    open(mine, "w").close()
    while sum(n.startswith("running-") for n in os.listdir(os.environ["HOPS_WORK_DIR"])) < 2:
        time.sleep(0.01)
    print("slot", os.environ["HOPS_SLOT"])
    return lr

def reports(lr, reporter):
    for step in range(1, 4):
        reporter.broadcast(lr * step, step)
    print("done")
    return lr

def exits(lr):
    os._exit(3)
"""

    def test_slots_run_side_by_side(self):
        for mode in ("fork", "spawn", "inproc"):
            with self.subTest(mode):
                c, hdfs, _ = self.run_executor("meets", mode, orders=2, setup={"slots": 2})
                self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"] * 2)
                self.assertEqual(sorted(hdfs.files["/e/%04d/output.log" % n] for n in (7, 8)), [b"slot 0\n", b"slot 1\n"])
                self.assertEqual(set(c.slots), {0, 1})
                self.assertEqual(sorted(m.get("slot", 0) for _, m in c.finals), [0, 1])

    def test_a_final_may_bring_the_next_trial(self):
        for mode in ("fork", "inproc"):
            with self.subTest(mode):
                c, hdfs, _ = self.run_executor("reports", mode, orders=4, hands_over=True)
                self.assertEqual([(n, m["status"]) for n, m in c.finals], [("%04d" % n, "COMPLETED") for n in (7, 8, 9, 10)])
                self.assertEqual(c.slots[0], 2, "the first trial and the end were asked for, the others came")
                self.assertEqual([step for _, step, _ in c.reports], [1, 2, 3] * 4)
                for n in (7, 8, 9, 10):
                    self.assertEqual(hdfs.files["/e/%04d/output.log" % n], b"done\n")

    def test_a_process_that_dies_takes_no_other_trial_with_it(self):
        for mode in ("fork", "inproc"):
            with self.subTest(mode):
                c, _, _ = self.run_executor("exits", mode, orders=3)
                self.assertEqual([(m["status"], m["error"]["type"]) for _, m in c.finals], [("FAILED", "ProcessDied")] * 3)
                self.assertIn("status 3", c.finals[0][1]["error"]["message"])


class Spares(harness.ExecutorCase):
    """The process that is forked for the next trial while one runs."""

    FUNCTIONS = """
import collections, os, signal, time

def spare():
    while True:
        for name in os.listdir("/proc"):
            try:
                with open("/proc/%s/stat" % name) as f:
                    words = f.read().rpartition(")")[2].split()
            except (OSError, ValueError):
                continue
            if name.isdigit() and int(words[1]) == os.getppid() and int(name) != os.getpid() and words[0] != "Z":
                return int(name)
        time.sleep(0.01)

def kills_it(lr):
    pid = spare()
    os.kill(pid, signal.SIGKILL)
    while os.path.exists("/proc/%d" % pid):
        time.sleep(0.01)
    print(os.getpid(), pid)

def descriptors(lr):
    print(spare(), collections.Counter(os.readlink("/proc/self/fd/" + n).partition(":")[0] for n in ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11")
                                       if os.path.lexists("/proc/self/fd/" + n)))
"""

    @unittest.skipUnless(os.path.exists("/proc/self/stat"), "no /proc")
    def test_one_that_died_is_replaced(self):
        c, hdfs, _ = self.run_executor("kills_it", orders=3)
        self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"] * 3, c.finals)
        pids = [int(p) for n in (7, 8, 9) for p in hdfs.files["/e/%04d/output.log" % n].split()]
        self.assertEqual(len(set(pids)), 6)

    @unittest.skipUnless(os.path.exists("/proc/self/stat"), "no /proc")
    def test_they_hold_nothing_of_others_and_end_with_the_executor(self):
        c, hdfs, _ = self.run_executor("descriptors", orders=3)
        found = [hdfs.files["/e/%04d/output.log" % n].decode().split(" ", 1) for n in (7, 8, 9)]
        self.assertEqual(len({what for _, what in found}), 1, found)
        until = time.monotonic() + 60
        while any(self.runs(pid) for pid, _ in found) and time.monotonic() < until:
            time.sleep(0.01)
        self.assertFalse([pid for pid, _ in found if self.runs(pid)])

    def runs(self, pid):
        try:
            with open("/proc/%s/stat" % pid) as f:
                return f.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False


class Inproc(harness.ExecutorCase):
    FUNCTIONS = """
import os, sys, time
calls = []

def counts(lr, trial_id, reporter):
    assert "MARK" not in os.environ and os.listdir(".") == []
    os.environ["MARK"] = trial_id
    open("left-behind", "w").close()
    calls.append(trial_id)
    print("call", len(calls), "in", trial_id)
    reporter.broadcast(len(calls), 1)
    return len(calls)

def raises(lr):
    calls.append(1)
    raise RuntimeError("for the %d. time" % len(calls))

def takes_the_streams(lr):
    calls.append(1)
    print("call", len(calls), flush=True)
    if len(calls) == 1:
        sys.stdout.close()
    elif len(calls) == 2:
        sys.stdout = sys.stderr = None
    return lr

def leaves(lr):
    calls.append(1)
    print("call", len(calls))
    sys.exit(0)

def endless(lr, reporter):
    calls.append(1)
    for step in range(1, 10 ** 6):
        reporter.broadcast(float(len(calls)), step)
        time.sleep(0.005)

def deaf(lr, reporter):
    calls.append(1)
    try:
        reporter.broadcast(float(len(calls)), 9)
    except BaseException:
        pass
    time.sleep(600)
"""

    def test_one_process_runs_all(self):
        c, hdfs, _ = self.run_executor("counts", "inproc", orders=3)
        self.assertEqual([m.get("metric") for _, m in c.finals], [1.0, 2.0, 3.0], c.finals)
        for n, trial in enumerate(("0007", "0008", "0009"), 1):
            self.assertEqual(hdfs.files["/e/%s/output.log" % trial], b"call %d in %s\n" % (n, trial.encode()))

    def test_an_exception_ends_the_trial_only(self):
        c, hdfs, _ = self.run_executor("raises", "inproc", orders=2)
        self.assertEqual([m["error"]["message"] for _, m in c.finals], ["for the 1. time", "for the 2. time"])
        self.assertIn(b"RuntimeError: for the 2. time", hdfs.files["/e/0008/output.log"])
        c, _, _ = self.run_executor("leaves", "inproc", orders=2)
        self.assertEqual([m["error"]["type"] for _, m in c.finals], ["FunctionExited"] * 2)

    def test_the_streams_are_those_of_the_process_again(self):
        c, hdfs, _ = self.run_executor("takes_the_streams", "inproc", orders=4)
        self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"] * 4)
        self.assertEqual([hdfs.files["/e/%04d/output.log" % (7 + n)] for n in range(4)], [b"call %d\n" % (n + 1) for n in range(4)])

    def test_a_stop_leaves_the_process(self):
        c, _, _ = self.run_executor("endless", "inproc", orders=2, stop_at=3)
        self.assertEqual([m["status"] for _, m in c.finals], ["STOPPED"] * 2)
        self.assertEqual({m["accuracy"] for t, _, m in c.reports if t == "0008"}, {2.0})

    def test_a_process_that_does_not_stop_is_replaced(self):
        c, _, _ = self.run_executor("deaf", "inproc", orders=2, stop_at=9, grace_ms=300)
        self.assertEqual([(m["status"], m["error"]["type"]) for _, m in c.finals], [("STOPPED", "StopTimeout")] * 2)
        self.assertEqual([m["accuracy"] for _, _, m in c.reports], [1.0, 1.0])


class Arguments(harness.ExecutorCase):
    FUNCTIONS = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
given = parser.parse_args()

def train(lr):
    print(sys.argv[0].endswith("/code/study.py"), sys.argv[1:], given.epochs)
    return lr
"""

    def test_a_module_that_reads_arguments_gets_none(self):
        for mode in ("fork", "spawn", "inproc"):
            with self.subTest(mode):
                c, hdfs, _ = self.run_executor("train", mode, setup={"code_dir": "code"})
                self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"], c.finals)
                self.assertEqual(hdfs.files["/e/0007/output.log"], b"True [] 3\n")


class Scripts(harness.ExecutorCase):
    FUNCTIONS = """
import sys
print("arguments", sys.argv[1:], __name__)
from hops.experiment import Reporter
Reporter().broadcast(float(sys.argv[-1]), 1)
sys.exit(0)
"""

    def test_a_module_can_be_run_as_a_script(self):
        for mode in ("fork", "spawn"):
            with self.subTest(mode):
                c, hdfs, _ = self.run_executor("__main__", mode, setup={"arguments": {"argv": ["--epochs", 3], "fast": True, "slow": False}})
                self.assertEqual([(m["status"], m.get("metric")) for _, m in c.finals], [("COMPLETED", None)], c.finals)
                self.assertEqual(hdfs.files["/e/0007/output.log"], b"arguments ['--epochs', '3', '--fast', '--lr', '0.5'] __main__\n")
                self.assertEqual(c.reports, [("0007", 1, {"accuracy": 0.5})])


if __name__ == "__main__":
    unittest.main()
