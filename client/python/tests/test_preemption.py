"""Notices of preemption, and the answer to them."""
import json
import os
import queue
import tempfile
import unittest
from unittest import mock

import fakes
from hops import _jobs, preemption

PATIENCE = 60  # seconds


class Manager(fakes.Fake):
    """A resource manager that notes what it is asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        super().__init__()

    def serve(self, h):
        self.asked.append((h.command, h.path.partition("?")[0], json.loads(h.body())))
        h.answer(*self.answers.pop(0))


class Preemption(unittest.TestCase):
    def setUp(self):
        work = tempfile.TemporaryDirectory()
        self.addCleanup(work.cleanup)
        self.file = os.path.join(work.name, "preemption.json")
        env = {k: v for k, v in os.environ.items() if not k.startswith("HOPS_")}
        patch = mock.patch.dict(os.environ, dict(env, HOPS_PREEMPTION_FILE=self.file), clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def write(self, text):
        with open(self.file + ".new", "w") as f:
            f.write(text)
        os.rename(self.file + ".new", self.file)

    def test_a_notice_is_there_until_it_is_withdrawn(self):
        self.assertIsNone(preemption.notice())
        self.write('{"since": 1000, "deadline": 61500, "reason": "others"}')
        self.assertEqual(preemption.notice(), preemption.Notice("others", 1.0, 61.5))
        self.assertEqual(preemption.notice().left, 0.0)
        os.remove(self.file)
        self.assertIsNone(preemption.notice())
        del os.environ["HOPS_PREEMPTION_FILE"]
        self.assertIsNone(preemption.notice())

    def test_what_is_no_notice_is_named(self):
        for text in ("", "[]", '{"since": 1}', '{"since": "a", "deadline": 2, "reason": ""}',
                     '{"since": 1, "deadline": 1%s, "reason": ""}' % ("0" * 400)):
            self.write(text)
            with self.assertRaisesRegex(ValueError, "is no notice"):
                preemption.notice()

    def test_who_watches_is_called(self):
        heard = queue.Queue()
        with preemption.watch(heard.put, interval=0.01):
            self.write('{"since": 1, "deadline": 2, "reason": "r"}')
            self.assertEqual(heard.get(timeout=PATIENCE).reason, "r")
            os.remove(self.file)
            self.assertIsNone(heard.get(timeout=PATIENCE))
        self.assertTrue(heard.empty())
        with self.assertRaises(ValueError):
            preemption.watch(heard.put, interval=0)

    def test_who_watches_hears_a_notice_after_what_could_not_be_read(self):
        heard, looks, fails = queue.Queue(), queue.Queue(), [OSError(24, "too many open files"), ValueError("no notice")]
        read = preemption.notice

        def sometimes():
            looks.put(None)
            if fails:
                raise fails.pop(0)
            return read()

        with mock.patch.object(preemption, "notice", sometimes), preemption.watch(heard.put, interval=0.01):
            for _ in range(3):
                looks.get(timeout=PATIENCE)
            self.write('{"since": 1, "deadline": 2, "reason": "r"}')
            self.assertEqual(heard.get(timeout=PATIENCE).reason, "r")
            fails.append(OSError(5, "input/output error"))  # the notice that was heard is still there
            for _ in range(3):
                looks.get(timeout=PATIENCE)
        self.assertTrue(heard.empty())

    def test_a_checkpoint_is_told_with_the_containers_own_name(self):
        manager = Manager((503, {"detail": "no leader"}), (200, {}), (404, {"detail": "it has ended"}))
        self.addCleanup(manager.close)
        self.assertFalse(preemption.checkpointed(1))
        os.environ.update(HOPS_RM=manager.url, HADOOP_USER_NAME="ann", HOPS_APPLICATION_ID="application_1_0001", HOPS_ATTEMPT="2", HOPS_CONTAINER_ID="container_1_0001_02_000003")
        self.assertTrue(preemption.checkpointed(1200))
        self.assertEqual(manager.asked[1], ("POST", "/api/v1/applications/application_1_0001/attempts/2/containers/container_1_0001_02_000003/checkpointed", {"step": 1200}))
        with self.assertRaisesRegex(_jobs.JobError, "step 7: it has ended"):
            preemption.checkpointed(7)
        for step in (-1, 1.5, True, "3"):
            with self.assertRaises(ValueError):
                preemption.checkpointed(step)
