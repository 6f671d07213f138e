"""The same function on a laptop: reporter, checkpoint and tensorboard without a cluster."""
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from harness import ROOT
from hops import _local, _run, tensorboard

STUDY = """
from hops import checkpoint, tensorboard, experiment

def train(lr, budget, reporter, seed=0):
    saved = checkpoint.load()
    start = saved[0] if saved else 0
    for epoch in range(start + 1, budget + 1):
        reporter.broadcast(lr * epoch, step=epoch)
        tensorboard.scalar("own", 1.0, epoch)
        checkpoint.save({"epoch": epoch}, step=epoch)
    assert not checkpoint.requested()
    reporter.log("from epoch %d" % start)
    return {"accuracy": lr * budget, "dir": tensorboard.logdir()}
"""


class Local(unittest.TestCase):
    def run_python(self, text, directory=None):
        with tempfile.TemporaryDirectory() as tmp:
            env = {k: v for k, v in os.environ.items() if not k.startswith("HOPS_")}
            env.update(PYTHONPATH=ROOT, TMPDIR=tmp, HADOOP_CONF_DIR="")
            if directory:
                env["HOPS_LOCAL_DIR"] = directory
            run = subprocess.run([sys.executable, "-c", STUDY + text], env=env, capture_output=True, text=True, cwd=tmp)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.made = sorted(os.path.relpath(os.path.join(d, n), tmp) for d, _, names in os.walk(tmp) for n in names)
            return run

    def test_a_plain_call_works(self):
        run = self.run_python("print(train(0.5, 3, experiment.Reporter())['accuracy'])")
        self.assertIn("step 3: 1.5\nfrom epoch 0\n1.5\n", run.stdout)
        self.assertIn("hops-local-", run.stderr)
        self.assertEqual(sum("step-3/state.json" in p for p in self.made), 1, self.made)
        self.assertEqual(sum("events.out.tfevents" in p for p in self.made), 1, self.made)

    def test_local_binds_arguments_as_a_trial_does(self):
        run = self.run_python("print(experiment.local(train, {'lr': 0.5}, budget=2)['accuracy'])\n"
                              "try:\n    experiment.local(train, {'rate': 1}, budget=2)\nexcept TypeError as e:\n    print(e)\n")
        self.assertIn("1.0\n", run.stdout)
        self.assertIn("train wants lr", run.stdout)

    def test_a_checkpoint_that_is_lost_in_the_background_is_told(self):
        text = """
def lossy():
    from hops import _run
    trial = _run.current()
    def full(*args, **more):
        raise OSError("disk is full")
    trial.fs.create = full
    checkpoint.save(b"x", 1, wait=False)
    return 1.0
try:
    experiment.local(lossy)
except OSError as e:
    print("told:", e)
from hops import _run
_run.current()
lossy()
"""
        run = self.run_python(text)
        self.assertIn("told: the checkpoint of step 1 of trial 0001 was not saved: disk is full", run.stdout)
        self.assertIn("the checkpoint of step 1 of trial 0001 was not saved: disk is full", run.stderr)  # at the end of the program

    def test_in_a_named_directory_a_run_goes_on(self):
        with tempfile.TemporaryDirectory() as d:
            self.run_python("train(0.5, 2, experiment.Reporter())", d)
            run = self.run_python("train(0.5, 3, experiment.Reporter())", d)
            self.assertIn("from epoch 2", run.stdout)


class Threads(unittest.TestCase):
    """Two threads that are the first at once: where one waits, the other one comes in between."""

    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.trial = _local.Trial(directory=work.name)
        _run.set_current(self.trial)
        for undo in (tensorboard._locals.clear, tensorboard._writers.clear, lambda: _run.set_current(None)):
            self.addCleanup(undo)

    def meanwhile(self, module, name, other):
        found, real = [], getattr(module, name)

        def first(*args, **more):
            patch.stop()
            found.append(other())
            return real(*args, **more)

        patch = mock.patch.object(module, name, first)
        patch.start()
        return found

    def test_they_write_one_event_file(self):
        self.meanwhile(tensorboard._events, "file_name", lambda: tensorboard.scalar("a", 1.0, 1))
        tensorboard.scalar("b", 2.0, 1)
        tensorboard.flush()
        written = b"".join(self.trial.fs.read(os.path.join(d, n)) for d, _, names in os.walk(self.trial.logdir) for n in names)
        self.assertEqual((written.count(b"brain.Event:2"), b"\n\x01a" in written, b"\n\x01b" in written), (1, True, True))

    def test_they_have_one_local_directory(self):
        self.trial.local_logdir = True
        found = self.meanwhile(tensorboard.tempfile, "mkdtemp", tensorboard.logdir)
        self.assertEqual([tensorboard.logdir()], found)
        tensorboard.flush()  # removes it


if __name__ == "__main__":
    unittest.main()
