"""CUDA and threads do not survive a fork: where the imports of a trial's module have begun one, trials are spawned."""
import ctypes
import os
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

import harness
from hops import _zygote

# A driver that knows whether it was initialised.
LIBCUDA = """
static int ready = 0;
int cuInit(unsigned flags) { ready = 1; return 0; }
int cuDeviceGetCount(int *n) { if (!ready) return 3; *n = 1; return 0; }
"""

FUNCTIONS = """
import ctypes, os
if os.environ["WHEN"] == "import":
    ctypes.CDLL(os.environ["LIBCUDA"]).cuInit(0)
elif os.environ["WHEN"] == "load":
    ctypes.CDLL(os.environ["LIBCUDA"])
IMPORTED_IN = os.getpid()

def train(lr):
    print("forked" if os.getpid() != IMPORTED_IN else "spawned", os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
    return lr
"""


class Driver(harness.ExecutorCase):
    FUNCTIONS = FUNCTIONS

    @unittest.skipUnless(shutil.which("gcc"), "there is no C compiler")
    def test_trials_are_spawned_when_the_imports_have_initialised_cuda(self):
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "cuda.c"), "w") as f:
                f.write(LIBCUDA)
            lib = os.path.join(d, "libcuda.so.1")
            subprocess.run(["gcc", "-shared", "-fPIC", "-o", lib, os.path.join(d, "cuda.c")], check=True)
            for when, want in (("import", b"spawned"), ("load", b"forked 1"), ("never", b"forked 1")):
                with self.subTest(when):
                    c, hdfs, _ = self.run_executor("train", env={"LIBCUDA": lib, "WHEN": when}, orders=2)
                    self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"] * 2)
                    for n in (7, 8):
                        self.assertIn(want, hdfs.files["/e/%04d/output.log" % n])
                    self.assertEqual("has initialised CUDA" in self.printed, when == "import", self.printed)


class Probe(unittest.TestCase):
    """The same without a compiler."""

    def test_the_loaded_driver_is_asked(self):
        line = "7f00-7f01 r-xp 00000000 08:01 42    /usr/lib/libcuda.so.535\n"
        for text, answer, want in ((line, 0, True), (line, 3, False), ("7f00-7f01 r-xp 00000000 08:01 42 /usr/lib/libc.so.6\n", 0, False), ("", 0, False)):
            with tempfile.NamedTemporaryFile("w") as maps, mock.patch.object(ctypes, "CDLL") as load:
                maps.write(text)
                maps.flush()
                load.return_value.cuDeviceGetCount.return_value = answer
                self.assertEqual(_zygote.cuda_initialised(maps.name), want)
                self.assertEqual(load.called, "libcuda" in text)
        self.assertFalse(_zygote.cuda_initialised("/nowhere"))


class Fallback(harness.ExecutorCase):
    FUNCTIONS = """
import os, sys
sys.modules["__main__"].cuda_initialised = lambda: True
IMPORTED_IN = os.getpid()

def train(lr):
    print("forked" if os.getpid() != IMPORTED_IN else "spawned")
    return lr
"""

    def test_the_executor_spawns_what_the_warm_interpreter_cannot_fork(self):
        c, hdfs, _ = self.run_executor("train", orders=2)
        self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"] * 2)
        self.assertIn(b"spawned", hdfs.files["/e/0008/output.log"])
        self.assertIn("executor_mode: spawn", self.printed)


class Threads(harness.ExecutorCase):
    """The thread holds the lock of a module that it imports, whenever a trial would be forked; the trial imports it too."""
    FUNCTIONS = """
import os, sys, threading
IMPORTED_IN = os.getpid()
with open("endless.py", "w") as f:
    f.write("import os, time\\nwhile os.getpid() == %d and not os.path.exists('trial'): time.sleep(.01)\\n" % IMPORTED_IN)
sys.path.insert(0, os.getcwd())
importing = threading.Thread(target=__import__, args=("endless",), name="prefetch", daemon=True)
importing.start()

def train(lr):
    open("trial", "w").close()
    import endless
    print("forked" if os.getpid() != IMPORTED_IN else "spawned")
    return lr
"""

    def test_trials_are_spawned_when_the_imports_have_started_a_thread(self):
        c, hdfs, _ = self.run_executor("train", orders=2)
        self.assertEqual([m["status"] for _, m in c.finals], ["COMPLETED"] * 2)
        self.assertIn(b"spawned", hdfs.files["/e/0008/output.log"])
        self.assertIn("has started threads, which do not survive a fork (prefetch)", self.printed)


if __name__ == "__main__":
    unittest.main()
