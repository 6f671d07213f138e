"""The end of a trial: what its process leaves behind, its files, its exceptions."""
import contextlib
import io
import os
import threading
import unittest
from unittest import mock

import fakes
import harness
from hops import _webhdfs, executor


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

def does_not_end(lr):
    # What the process does after it has said how the function ended takes for ever.
    import shutil
    shutil.rmtree = lambda *args, **more: time.sleep(600)
    return lr

def hangs_up(lr):
    from hops import _run
    _run.current()._channel.sock.close()
    time.sleep(600)

def fails_without_streams(lr):
    sys.stdout = None
    sys.stderr.close()
    raise ValueError("the cause")

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

def waits_until_its_log_is_held(lr):
    from hops import hdfs
    print("spoke", flush=True)
    while not hdfs.exists("/held"):
        time.sleep(0.01)
    return lr

def reports(lr, reporter):
    for step in range(1, 4):
        reporter.broadcast(lr, step)

def asks(lr, reporter):
    from hops import checkpoint
    assert not checkpoint.requested()
    for step in range(1, 10 ** 6):
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

    def test_a_process_that_does_not_end_does_not_hold_the_slot(self):
        for mode in ("fork", "spawn", "inproc"):
            with self.subTest(mode):
                c, _, _ = self.run_executor("does_not_end", mode, orders=2, constants={"LAST_SECONDS": 0.3})
                self.assertEqual([(n, m["status"]) for n, m in c.finals], [("0007", "COMPLETED"), ("0008", "COMPLETED")], c.finals)
        c, _, _ = self.run_executor("hangs_up", constants={"LAST_SECONDS": 0.3})
        self.assertEqual([(m["status"], m["error"]["type"]) for _, m in c.finals], [("FAILED", "ProcessDied")])

    def test_an_exception_without_streams_is_named(self):
        for mode in ("fork", "spawn"):
            with self.subTest(mode):
                c, _, _ = self.run_executor("fails_without_streams", mode)
                self.assertEqual([m["error"]["message"] for _, m in c.finals], ["the cause"])

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

    def test_a_log_that_is_being_written_holds_nothing_up(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.hold = threading.Event()
        c, _, _ = self.run_executor("waits_until_its_log_is_held", hdfs=hdfs, orders=2, constants={"FLUSH_SECONDS": 0.01},
                                    on_final=lambda n: n == 2 and hdfs.hold.set())
        self.assertEqual(len(c.finals), 2)

    def test_an_executor_whose_files_are_not_taken_says_that_it_lives(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.hold = threading.Event()
        c, _, _ = self.run_executor("speaks", hdfs=hdfs, orders=4, constants={"MAX_UNWRITTEN": 1}, on_register=lambda n: n == 4 and hdfs.hold.set())
        self.assertEqual(len(c.finals), 4)
        for n in range(7, 11):
            self.assertIn(b"spoke", hdfs.files["/e/%04d/output.log" % n])

    def test_an_executor_that_drains_lives_until_its_files_are_written(self):
        hdfs = fakes.FakeHDFS()
        self.addCleanup(hdfs.close)
        hdfs.hold = threading.Event()
        self.run_executor("speaks", hdfs=hdfs, on_register=lambda n: n == 3 and hdfs.hold.set())
        self.assertIn(b"spoke", hdfs.files["/e/0007/output.log"])

    def test_a_report_that_is_refused_ends_the_trial_not_the_executor(self):
        c, _, _ = self.run_executor("reports", orders=2, refuse_at=2)
        self.assertEqual([(m["status"], m["error"]["type"], m["error"]["message"]) for _, m in c.finals], [("FAILED", "BAD_REQUEST", "not like this")] * 2)

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
        self.assertRegex(error["message"], "in line [12] of study.py")  # Python 3.9 sees it at the end


class Recorded(harness.ExecutorCase):
    FUNCTIONS = "def train(lr):\n    return lr\n"

    def test_an_executor_ends_after_its_environment_is_recorded(self):
        ended = threading.Event()

        class Late(fakes.FakeHDFS):
            def serve(self, h):
                if "/environment.json" in h.path:
                    ended.wait(240)
                super().serve(h)

        hdfs = Late()
        self.addCleanup(hdfs.close)
        self.run_executor("train", hdfs=hdfs, constants={"RECORD_SECONDS": 240}, on_final=lambda n: ended.set())
        directory = harness.vector("register")["response"]["body"]["directory"]
        self.assertEqual([p for p in [*hdfs.files] if p.startswith(directory)], [directory + "/environment.json"])


class Environment(unittest.TestCase):
    def test_one_that_cannot_be_recorded_is_one_line(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            executor._record_environment(mock.Mock(status=mock.Mock(side_effect=OSError("no namenode\nserved it"))), "/e")
        self.assertEqual(said.getvalue(), "the environment of the experiment was not recorded: OSError: no namenode served it\n")


class Output(unittest.TestCase):
    def trial(self, child=None):
        """A trial of which only the log is there, what it took of that, and the ends of the pipes."""
        log = []
        trial = executor.Trial.__new__(executor.Trial)
        trial._take_log = log.append
        trial._log_lock, trial._log_taken, trial._log_over, trial._child = threading.Lock(), 0, False, child
        trial._log_read, printed = os.pipe()
        self.addCleanup(os.close, printed)
        trial._gone_read, gone = os.pipe()
        return trial, log, printed, gone

    def test_what_was_printed_is_read_however_late(self):
        """A reader that is paused for longer than the end of a trial may take, while a daemon holds the pipe open."""
        trial, log, printed, gone = self.trial()
        os.write(printed, b"the last words\n" * 4000)
        os.close(gone)
        with mock.patch.object(executor, "LEFTOVER_SECONDS", -1):
            trial._read_log()
        self.assertEqual(b"".join(log), b"the last words\n" * 4000)

    def test_what_was_printed_before_the_end_counts(self):
        """What is reported of the log at the end has what was in the pipe then, though the reader is late."""
        trial, log, printed, gone = self.trial(child=object())
        os.write(printed, b"the last words\n" * 4000)
        reader = threading.Timer(0.2, trial._read_log)
        reader.start()
        trial._catch_up()
        self.assertEqual(b"".join(log), b"the last words\n" * 4000)
        os.close(gone)
        reader.join()
        trial._catch_up()  # its pipe is closed


class Logs(unittest.TestCase):
    def setUp(self):
        self.hdfs = fakes.FakeHDFS()
        self.addCleanup(self.hdfs.close)
        self.fs = _webhdfs.WebHDFS([self.hdfs.url])

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
