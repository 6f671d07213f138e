"""Functions as they should not be: processes that they fork, threads that go on, floods of reports and of output, full disks. Each is named in one line that
says what to do, and costs no other trial anything."""
import threading
import time
import unittest

import harness  # it knows where the package is
import fakes


class Bad(harness.ExecutorCase):
    FUNCTIONS = """
import errno, os, sys, tempfile, threading, time

def reports_twice(lr, reporter):
    reporter.broadcast(lr, 1)
    pid = os.fork()
    for step in range(2, 10 ** 6):
        reporter.broadcast(lr + (pid == 0), step)
        time.sleep(0.01)

def saves_twice(lr, reporter):
    from hops import checkpoint
    reporter.broadcast(lr, 1)
    if os.fork() == 0:
        checkpoint.save({"of": "the child"}, 1)
    time.sleep(600)

def child_reports(lr, reporter):
    pid = os.fork()
    if pid == 0:
        for step in range(1, 4):
            reporter.broadcast(lr * step, step)
        os._exit(0)
    os.waitpid(pid, 0)
    return lr * 3

def forks(lr, end):
    with open("mine", "w") as f:
        f.write("there")
    pid = os.fork()
    if pid == 0:
        if end == "raises":
            raise RuntimeError("only here")
        if end == "exits":
            sys.exit(5)
        return 99.0
    status = os.waitpid(pid, 0)[1]
    print("ended with", os.WEXITSTATUS(status), open("mine").read())
    return lr

def thread_goes_on(lr, reporter, trial_id):
    stop = os.path.join(os.environ["HOPS_WORK_DIR"], "stop")
    def goes_on():
        try:
            while not os.path.exists(stop):
                reporter.broadcast(-1.0)
        finally:
            open(stop + "ped", "w").close()
    if trial_id == "0007":
        reporter.broadcast(lr, 1)
        threading.Thread(target=goes_on).start()
        return lr
    open(stop, "w").close()
    while not os.path.exists(stop + "ped"):
        time.sleep(0.01)
    reporter.broadcast(lr, 1)
    return lr

def floods(lr, reporter):
    for step in range(1, 3001):
        reporter.broadcast(lr, step)
    return lr

def prints(lr):
    for _ in range(200):
        sys.stdout.write("x" * (1 << 20) + "\\n")
    print("the last words")
    return lr

def fills_the_disk(lr):
    with open("/dev/full", "w") as f:
        f.write("x" * 100000)

def saves(lr):
    from hops import checkpoint
    checkpoint.save({"x": 1}, 1)
    return lr

if os.environ.get("NO_ROOM"):
    def mkdtemp(**more):
        raise OSError(errno.ENOSPC, "No space left on device", "/work")
    tempfile.mkdtemp = mkdtemp
"""

    def error(self, function, mode="fork", **more):
        """The error with which two trials of a function end alike: one line, and a remedy."""
        c, hdfs, _ = self.run_executor(function, mode, orders=2, **more)
        self.assertEqual([(n, m["status"]) for n, m in c.finals], [("0007", "FAILED"), ("0008", "FAILED")], c.finals)
        errors = [m["error"] for _, m in c.finals]
        for e in errors:
            self.assertEqual(len(e["message"].splitlines()), 1, e)
            self.assertTrue(e["remedy"], e)
        self.assertEqual(errors[0]["type"], errors[1]["type"])
        return errors[0]

    def test_reports_of_two_processes_are_no_curve(self):
        for function in ("reports_twice", "saves_twice"):
            for mode in ("fork", "spawn", "inproc"):
                with self.subTest(function=function, mode=mode):
                    e = self.error(function, mode)
                    self.assertEqual(e["type"], "ReportFromFork", e)
                    self.assertRegex(e["message"], r"process \d+ reported, and process \d+, which one of them has forked, too")
                    self.assertIn("in one process only", e["remedy"])

    def test_a_child_may_be_the_one_that_reports(self):
        c, _, _ = self.run_executor("child_reports")
        self.assertEqual([step for _, step, _ in c.reports], [1, 2, 3])
        self.assertEqual([(m["status"], m["metric"]) for _, m in c.finals], [("COMPLETED", 1.5)])

    def test_a_fork_that_comes_out_of_the_function_is_not_its_end(self):
        for mode in ("fork", "spawn", "inproc"):
            for end, status in (("returns", 0), ("raises", 1), ("exits", 5)):
                with self.subTest(mode=mode, end=end):
                    c, hdfs, _ = self.run_executor("forks", mode, orders=2, setup={"arguments": {"end": end}})
                    self.assertEqual([(n, m["status"], m["metric"]) for n, m in c.finals], [("0007", "COMPLETED", 0.5), ("0008", "COMPLETED", 0.5)])
                    for n in (7, 8):
                        log = hdfs.files["/e/%04d/output.log" % n].decode()
                        self.assertRegex(log, r"process \d+, which the function has forked, came to the end of the function and ends; the trial is what process \d+ returns")
                        self.assertIn("ended with %d there" % status, log)
                        self.assertEqual("RuntimeError: only here" in log, end == "raises")

    def test_a_thread_of_an_ended_trial_reports_nothing_in_the_next(self):
        c, _, _ = self.run_executor("thread_goes_on", "inproc", orders=2)
        self.assertEqual([(n, m["status"], m["metric"]) for n, m in c.finals], [("0007", "COMPLETED", 0.5), ("0008", "COMPLETED", 0.5)])
        self.assertEqual([m for n, _, m in c.reports if n == "0008"], [{"accuracy": 0.5}])

    def test_who_reports_faster_than_is_recorded_waits_and_is_told(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)

        def report():  # the first one is answered when so many wait that the log says so
            while b"reports faster" not in hdfs.files.get("/e/0007/output.log", b""):
                time.sleep(0.01)
        c, _, _ = self.run_executor("floods", hdfs=hdfs, constants={"MAX_UNSENT": 50, "FLUSH_SECONDS": 0.01}, on_report=report)
        self.assertEqual([step for _, step, _ in c.reports], list(range(1, 3001)))
        self.assertEqual(c.finals[0][1]["status"], "COMPLETED")
        log = hdfs.files["/e/0007/output.log"].decode()
        self.assertEqual(log, "[trial 0007 reports faster than its reports are recorded, and waits for that; report once an epoch]\n")

    def test_of_output_without_end_the_log_has_both_ends(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.hold = threading.Event()  # the filesystem is slower than the function
        c, _, _ = self.run_executor("prints", hdfs=hdfs, on_final=lambda n: hdfs.hold.set())
        self.assertEqual((c.finals[0][1]["status"], c.finals[0][1]["log_bytes"]), ("COMPLETED", 200 * ((1 << 20) + 1) + 15))
        log = hdfs.files["/e/0007/output.log"]
        self.assertLess(len(log), 129 << 20)  # a flush has taken what waited, 64 MiB at most, and as much waits behind it
        self.assertRegex(log[len(log) // 4:], rb"\n\[\d+ bytes are missing here: more was written than is kept\]\n")
        self.assertTrue(log.endswith(b"\nthe last words\n"))

    def test_a_full_disk_is_named(self):
        e = self.error("fills_the_disk")
        self.assertEqual((e["type"], e["message"]), ("OSError", "[Errno 28] No space left on device"))
        self.assertIn("free space on the disk of ", e["remedy"])
        for mode in ("fork", "spawn", "inproc"):
            with self.subTest(mode):
                e = self.error("fills_the_disk", mode, env={"NO_ROOM": "1"})  # before the function begins
                self.assertEqual((e["type"], e["message"]), ("OSError", "[Errno 28] No space left on device: '/work'"))
                self.assertIn("free space on the disk of ", e["remedy"])

    def test_a_full_filesystem_is_named(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.full = "The DiskSpace quota of /e is exceeded: quota = 1 B = 1 B but diskspace consumed = 128 B = 128 B"
        e = self.error("saves", hdfs=hdfs)
        self.assertIn(hdfs.full, e["message"])
        self.assertIn("free space in the filesystem", e["remedy"])


if __name__ == "__main__":
    unittest.main()
