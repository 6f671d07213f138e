"""Runs the executor against a controller and a filesystem that are fakes."""
import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [ROOT, HERE]

import fakes  # noqa: E402

PROTOCOL = os.path.join(ROOT, "..", "..", "training", "controller", "testdata", "protocol")


def vector(name):
    with open(os.path.join(PROTOCOL, name + ".json")) as f:
        return json.load(f)


def identity(name):
    """A file with a key and a certificate, as a controller makes them for itself."""
    return os.path.join(HERE, "testdata", name + ".pem")


def certificate(path):
    """The certificate in such a file, in DER."""
    with open(path) as f:
        return ssl.PEM_cert_to_DER_cert("-----BEGIN CERTIFICATE-----" + f.read().split("-----BEGIN CERTIFICATE-----")[1])


class Pauses:
    """In the place of the module time: only what is slept passes, at once, so that who gives up after so many seconds has tried."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class ExecutorCase(unittest.TestCase):
    # The module study that the trials' functions are in.
    FUNCTIONS = ""

    def run_executor(self, function, mode="fork", resume=None, status=0, env=None, setup=None, hdfs=None, orders=1, constants=None, first=None, kind=fakes.FakeController,
                     python=sys.executable, **controller):
        """Run one executor through orders trials of the function. constants are those of the executor's module that have other
        values. first is the controller's URL as the executor is told it; the file .controller.json in /e has the true one. Returns the controller, the filesystem and what was recorded."""
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        if hdfs is None:
            hdfs = fakes.FakeHDFS()
            self.addCleanup(hdfs.close)
        more = setup or {}
        os.mkdir(os.path.join(work.name, "code"))
        with open(os.path.join(work.name, "code", "study.py"), "w") as f:
            f.write(textwrap.dedent(self.FUNCTIONS))
        with open(os.path.join(work.name, "token"), "w") as f:
            f.write("sesame\n")
        setup = dict(vector("register")["response"]["body"], entry="study:" + function, mode=mode, **dict({"arguments": {"data": "/d"}, "report_ms": 50}, **more))
        order = {"trial": "0007", "attempt": 2 if resume else 1, "params": {"lr": 0.5}, "budget": {"from": 0, "to": 3, "unit": "epoch"}, "seed": 1,
                 "dirs": {"trial": "/e/0007", "tensorboard": "/e/0007", "log": "/e/0007/output.log", "checkpoints": "/e/0007/checkpoints/1"}}
        if resume:
            order["resume"] = resume
            hdfs.files.update({resume["uri"] + "/state.json": b'{"epoch": 2}'})
            manifest = {"step": 2, "files": [{"name": "state.json", "size": 12, "crc32": zlib.crc32(b'{"epoch": 2}')}]}
            hdfs.files[resume["uri"] + "/MANIFEST.json"] = json.dumps(manifest).encode()
        c = kind(setup, [order] + [dict(order, trial="%04d" % (7 + n), dirs={k: v.replace("0007", "%04d" % (7 + n)) for k, v in order["dirs"].items()})
                                                  for n in range(1, orders)], **controller)
        self.addCleanup(c.close)
        if first:
            where = {"url": c.url}
            if controller.get("identity"):
                where["certificate"] = base64.b64encode(certificate(controller["identity"])).decode()
            hdfs.files["/e/.controller.json"] = json.dumps(where).encode()
        record = os.path.join(work.name, "record")
        environment = dict(os.environ, PYTHONPATH=ROOT, HOPS_CONTROLLER=first or c.url, HOPS_TOKEN=os.path.join(work.name, "token"), HOPS_CONTAINER_ID="container_1",
                           HOPS_WORK_DIR=work.name, HOPS_WEBHDFS=hdfs.url, HADOOP_USER_NAME="ann", HOPS_RECORD=record, PYTHONDONTWRITEBYTECODE="1", **(env or {}))
        program = "from hops import executor; vars(executor).update(%r); executor.main()" % (constants or {})
        done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.said, self.printed = done.stderr, done.stdout
        facts = []
        if os.path.exists(record):
            with open(record) as f:
                facts = [json.loads(line) for line in f]
        return c, hdfs, facts

