"""An executor and its controller on two machines: TLS, with the certificate that the controller has made itself."""
import base64
import ssl
import unittest

import harness
import fakes

CONTROLLER, OTHER = harness.identity("controller"), harness.identity("other")


def environment(path):
    return {"HOPS_CONTROLLER_CERTIFICATE": base64.b64encode(harness.certificate(path)).decode(), "HOPS_EXPERIMENT_DIR": "/e"}


class Stranger(fakes.Fake):
    """Keeps what it is sent."""

    def __init__(self, *how):
        self.got = []
        super().__init__(*how)

    def serve(self, h):
        self.got.append((h.command, h.path, dict(h.headers), h.body()))
        h.answer(200, {"action": "drain", "reason": "says a stranger"})


class Test(harness.ExecutorCase):
    FUNCTIONS = """
        def train(lr, reporter):
            for step in range(1, 4):
                reporter.broadcast(step * lr, step=step)
            return 3 * lr
        """

    def test_a_trial_by_tls(self):
        c, _, _ = self.run_executor("train", env=environment(CONTROLLER), identity=CONTROLLER)
        self.assertEqual([(t, m["status"]) for t, m in c.finals], [("0007", "COMPLETED")])

    def test_a_controller_that_was_restarted_is_followed_with_its_new_certificate(self):
        for what, stranger, why in (
                ("another certificate", (OTHER,), CONTROLLER),
                ("TLS 1.2, with the certificate", (CONTROLLER, ssl.TLSVersion.TLSv1_2), CONTROLLER),
                ("its own certificate, before it was restarted", (OTHER,), OTHER)):
            with self.subTest(what):
                s = Stranger(*stranger)
                self.addCleanup(s.close)
                c, _, _ = self.run_executor("train", env=environment(why), first=s.url, identity=CONTROLLER)
                self.assertEqual([(t, m["status"]) for t, m in c.finals], [("0007", "COMPLETED")])
                if why == CONTROLLER:  # nothing was sent to who is not the controller
                    self.assertEqual(s.got, [])

    def test_what_cannot_be_verified_is_not_spoken_to(self):
        s = Stranger(CONTROLLER)
        self.addCleanup(s.close)
        for given, says in (("", "the certificate of its server is not known"), ("!", "the controller's certificate is not base64"),
                            ("AAAA", "the certificate of its server cannot be read")):
            with self.subTest(given):
                self.run_executor("train", env={"HOPS_CONTROLLER_CERTIFICATE": given}, first=s.url, status=1)
                self.assertEqual(self.said.count("\n"), 1, self.said)
                self.assertIn(says, self.said)
        self.assertEqual(s.got, [])

    def test_who_never_shows_the_certificate_is_named_in_the_end(self):
        s = Stranger(OTHER)
        self.addCleanup(s.close)
        self.run_executor("train", env={**environment(CONTROLLER), "HOPS_EXPERIMENT_DIR": "/nowhere"}, first=s.url, status=1, constants={"PATIENCE": 0.1})
        self.assertIn("no controller answered", self.said)
        self.assertIn("certificate verify failed", self.said)
        self.assertEqual(s.got, [])


if __name__ == "__main__":
    unittest.main()
