"""The end of a trial: what its process leaves behind, its files, its exceptions."""
import threading
import unittest

import fakes
import harness
from hops import _webhdfs


class End(harness.ExecutorCase):
    FUNCTIONS = """
import os, subprocess, sys, time

def leaves_a_child(lr):
    subprocess.Popen(["sleep", "600"])
    print("before the end")
    return lr

def leaves_a_daemon(lr):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while os.path.exists(os.environ["HOPS_WORK_DIR"]):  # until the test is over
                time.sleep(0.1)
        os._exit(0)
    os.wait()
    print("before the end")
    return lr

def exits(lr):
    sys.exit(0)

def exits_with_words(lr):
    sys.exit("no data")

def wants_more(lr, other):
    return lr

def positional(lr, /):
    return lr

def type_error(lr):
    return lr + "x"

def quiet(lr):
    return lr

def speaks(lr):
    print("spoke")
    return lr

def asks(lr, reporter):
    from hops import checkpoint
    assert not checkpoint.requested()
    for step in range(1, 2000):
        reporter.broadcast(1.0, step)
        if checkpoint.requested():
            checkpoint.save({"step": step}, step)
            assert not checkpoint.requested()
            return 2.0
        time.sleep(0.01)
"""

    def test_what_outlives_the_function_does_not_hold_the_trial(self):
        for function in ("leaves_a_child", "leaves_a_daemon"):
            for mode in ("fork", "spawn"):
                with self.subTest(function=function, mode=mode):
                    c, hdfs, _ = self.run_executor(function, mode)
                    self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"])
                    self.assertIn(b"before the end", hdfs.files["/e/0007/output.log"])

    def test_sys_exit_is_named(self):
        c, _, _ = self.run_executor("exits")
        self.assertEqual(c.finals[0][1]["error"]["type"], "FunctionExited")
        self.assertIn("sys.exit(0)", c.finals[0][1]["error"]["message"])
        c, _, _ = self.run_executor("exits_with_words")
        self.assertIn("no data", c.finals[0][1]["error"]["message"])

    def test_arguments_that_do_not_fit_are_told_from_other_type_errors(self):
        for function, kind in (("wants_more", "ArgumentMismatch"), ("positional", "ArgumentMismatch"), ("type_error", "TypeError"), ("nowhere", "FunctionMissing")):
            with self.subTest(function):
                c, _, _ = self.run_executor(function)
                self.assertEqual(c.finals[0][1]["error"]["type"], kind)

    def test_files_are_written_after_the_final_metric_is_acknowledged(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.hold = threading.Event()  # the filesystem does not take the log until all trials have ended
        c, _, _ = self.run_executor("speaks", hdfs=hdfs, orders=3, on_final=lambda n: n == 3 and hdfs.hold.set())
        self.assertEqual(len(c.finals), 3)
        for n in (7, 8, 9):
            self.assertIn(b"spoke", hdfs.files["/e/%04d/output.log" % n])

    def test_an_empty_log_is_no_file(self):
        _, hdfs, _ = self.run_executor("quiet")
        self.assertNotIn("/e/0007/output.log", hdfs.files)

    def test_the_wish_for_a_checkpoint_reaches_the_function(self):
        c, _, _ = self.run_executor("asks", checkpoint_at=3)
        self.assertEqual(len(c.checkpoints), 1)
        self.assertEqual((c.finals[0][1]["status"], c.finals[0][1].get("metric")), ("COMPLETED", 2.0), c.finals)


class Broken(harness.ExecutorCase):
    FUNCTIONS = "def train(lr:\n    return lr\n"

    def test_a_syntax_error_names_its_line(self):
        c, _, _ = self.run_executor("train")
        error = c.finals[0][1]["error"]
        self.assertEqual(error["type"], "SyntaxError")
        self.assertIn("in line 1 of study.py", error["message"])


class Logs(unittest.TestCase):
    def setUp(self):
        self.hdfs = fakes.FakeHDFS()
        self.addCleanup(self.hdfs.close)
        self.fs = _webhdfs.WebHDFS([self.hdfs.url], timeout=5)

    def test_the_end_of_a_long_log_is_kept(self):
        log = _webhdfs.Appender(self.fs, "/log", limit=1000)
        for n in range(1000):
            log.add(b"line %06d\n" % n)
        log.flush()
        text = self.hdfs.files["/log"].decode()
        self.assertTrue(text.startswith("line 000000\n"))
        self.assertTrue(text.endswith("line 000999\n"))
        self.assertLess(len(text), 2000)
        self.assertRegex(text, r"\n\[\d+ bytes are missing here: ")
        missing = int(text.split("[")[1].split()[0])
        kept = sum(len(l) + 1 for l in text.splitlines() if l.startswith("line "))
        self.assertEqual(missing + kept, 12000)

    def test_a_log_has_an_end(self):
        log = _webhdfs.Appender(self.fs, "/log", limit=1000, total=3000)
        for n in range(1000):
            log.add(b"line %06d\n" % n)
            if n % 10 == 0:
                log.flush()
        self.assertLess(len(self.hdfs.files["/log"]), 3200)
        log.flush(last=True)
        text = self.hdfs.files["/log"].decode()
        self.assertLess(len(text), 4000)
        self.assertTrue(text.endswith("line 000999\n"))
        self.assertIn("bytes are missing here", text)


if __name__ == "__main__":
    unittest.main()
