"""Files and jobs of a cluster whose servers are on other machines: TLS, delegation tokens, signed requests. That servers of the tests
count as elsewhere is all that is made up."""
import base64
import json
import os
import ssl
import tempfile
import unittest
import urllib.parse
from unittest import mock

import harness
import fakes

from hops import _cluster, _http, _jobs, _login, _signature, _token, _webhdfs, hdfs

DATA = os.path.join(harness.HERE, "testdata")

# What Hadoop 3.4.3 writes: a token of alice for 127.0.0.1:8020, and a secret.
JAVA = bytes.fromhex(
    "4844545300010e3132372e302e302e313a38303230240005616c696365047961726e056f6f7a69658a018bcfe568008a018bf3f1ec008e012c07148e6fc368ff44194213fda6a8968571"
    "173c7e809215484446535f44454c45474154494f4e5f544f4b454e0e3132372e302e302e313a3830323001016b06736563726574")
JAVA_TEXT = "JAAFYWxpY2UEeWFybgVvb3ppZYoBi8_laACKAYvz8ewAjgEsBxSOb8No_0QZQhP9pqiWhXEXPH6AkhVIREZTX0RFTEVHQVRJT05fVE9LRU4OMTI3LjAuMC4xOjgwMjA"


def pem(name):
    return os.path.join(DATA, name + ".pem")


def field(data):
    assert len(data) < 128
    return bytes([len(data)]) + data


def credentials(service, owner="ann", password=b"p1", kind=b"HDFS_DELEGATION_TOKEN"):
    """A file of credentials with one token."""
    identifier = b"\0" + field(owner.encode()) + field(b"rm") + field(b"") + bytes([1, 2, 3, 4])
    return b"HDTS\0\1" + field(b"x") + field(identifier) + field(password) + field(kind) + field(service.encode()) + b"\0"


class Doors(fakes.FakeHDFS):
    """A namenode and datanode by TLS. asked is what each request showed; good is the token's text that is taken; expire: how many
    requests are refused first, by the door (namenode, datanode) that is named. inform is called at each refusal."""

    def __init__(self, identity=pem("namenode"), newest=None, scheme="https", good=None):
        self.asked, self.good, self.expire, self.inform, self.scheme = [], good, {}, lambda: None, scheme
        super().__init__(identity, newest)
        self.url = scheme + "://" + self.url.partition("://")[2]

    def serve(self, h):
        q = {k: v[0] for k, v in urllib.parse.parse_qs(urllib.parse.urlsplit(h.path).query).items()}
        door = "datanode" if "data" in q else "namenode"
        self.asked.append((door, q.get("user.name"), q.get("delegation"), h.headers.get("Authorization")))
        if self.expire.get(door) or self.good and q.get("delegation") != self.good:
            self.expire[door] = self.expire.get(door, 1) - 1
            h.body()
            self.inform()
            return self._error(h, 403, "InvalidToken", "token (token for ann) is expired")
        super().serve(h)


class Elsewhere(unittest.TestCase):
    """Servers on this machine count as those of another one."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.environment = dict(os.environ)
        self.addCleanup(self.restore)
        for name in list(os.environ):
            if name.startswith("HOPS_") or name.startswith("HADOOP_"):
                del os.environ[name]
        self.here = _login.here
        _login.here = lambda remote, local: False
        os.environ.update(HOME=self.dir, HOPS_CONTAINER_ID="container_1_0001_01_000002", HOPS_FS="hdfs://lab", HADOOP_USER_NAME="ann",
                          HOPS_AUTHORITY=pem("authority"), HADOOP_TOKEN_FILE_LOCATION=os.path.join(self.dir, "tokens"))
        self.write(credentials("ha-hdfs:lab"))

    def restore(self):
        _login.here = self.here
        os.environ.clear()
        os.environ.update(self.environment)
        vars(_http._local).clear()

    def write(self, data):
        """The file of credentials, replaced at once as node managers do."""
        path = os.path.join(self.dir, "tokens")
        with open(path + ".new", "wb") as f:
            f.write(data)
        os.rename(path + ".new", path)

    def text(self):
        return _token.load(os.environ["HADOOP_TOKEN_FILE_LOCATION"])[0].text

    def doors(self, **how):
        d = Doors(**how)
        self.addCleanup(d.close)
        return d

    def fs(self, *doors, timeout=20):
        os.environ["HOPS_WEBHDFS"] = ",".join(d.url.partition("://")[2] for d in doors)
        return _webhdfs.WebHDFS(timeout=timeout)


class Files(Elsewhere):
    def test_all_that_an_experiment_does(self):
        for scheme in ("https", "http"):  # of the redirect: TLS because it says so, or because the datanode is elsewhere
            with self.subTest(scheme):
                d = self.doors(scheme=scheme, good=self.text())
                fs = self.fs(d)
                fs.mkdirs("/e")
                fs.create("/e/f", b"one")
                fs.append("/e/f", b"two")
                self.assertEqual((fs.read("/e/f"), fs.read("/e/f", 3, 2), fs.status("/e/f")["length"], len(fs.list("/e"))), (b"onetwo", b"tw", 6, 1))
                log = _webhdfs.Appender(fs, "/e/log")
                log.add(b"line\n")
                log.flush()
                self.assertTrue(fs.rename("/e/log", "/e/old"))
                self.assertTrue(fs.delete("/e", recursive=True))
                # The token says who acts, and nothing else does.
                self.assertEqual({a[1:] for a in d.asked}, {(None, self.text(), None)})

    def test_hdfs_and_its_user(self):
        d = self.doors(good=self.text())
        self.fs(d)
        del os.environ["HADOOP_USER_NAME"]
        self.assertEqual(hdfs.project_user(), "ann")  # whose token it is
        hdfs.dump("text", "/f")
        self.assertEqual(hdfs.load("/f"), b"text")

    def test_on_this_machine_a_name_is_enough_and_no_token_is_shown(self):
        _login.here = self.here
        d = self.doors(identity=None, scheme="http")
        fs = self.fs(d)
        fs.create("/f", b"x")
        self.assertEqual(fs.read("/f"), b"x")
        self.assertEqual({a[1:] for a in d.asked}, {("ann", None, None)})

    def test_where_this_machine_is(self):
        for remote, local, want in (("127.0.0.1", "127.0.0.1", True), ("127.9.9.9", "127.0.0.1", True), ("::1", "::1", True), ("10.0.0.1", "10.0.0.1", True),
                                    ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True), ("10.0.0.1", "10.0.0.2", False), ("fe80::1%eth0", "fe80::2%eth0", False), ("x", "y", False)):
            self.assertEqual(self.here(remote, local), want, remote)

    def test_a_token_that_was_replaced_is_read_anew(self):
        for door in ("namenode", "datanode"):
            with self.subTest(door):
                self.write(credentials("ha-hdfs:lab", password=b"old"))
                old = self.text()
                d = self.doors()
                d.files["/f"] = b"x"
                d.expire[door] = 1
                d.inform = lambda: self.write(credentials("ha-hdfs:lab", password=b"new"))
                self.assertEqual(self.fs(d).read("/f"), b"x")
                self.assertEqual([a[2] for a in d.asked if a[0] == door], [old, self.text()])
                self.assertNotEqual(old, self.text())

    def test_a_token_that_is_not_good_any_more_is_one_line(self):
        d = self.doors(good="another")
        with self.assertRaisesRegex(PermissionError, r"is expired \(the token of ann for ha-hdfs:lab, in .*/tokens\)$"):
            self.fs(d).status("/f")
        self.assertEqual(len(d.asked), 1)

    def test_who_is_not_spoken_to(self):
        for what, how, want in (
                ("a server of another cluster", {"identity": pem("stranger")}, "shows no certificate of cluster CID-test that is good"),
                ("a datanode in place of a namenode", {"identity": pem("datanode")}, "is no namenode of cluster CID-test"),
                ("a resource manager in place of a namenode", {"identity": pem("resourcemanager")}, "is no namenode of cluster CID-test"),
                ("TLS 1.2", {"newest": ssl.TLSVersion.TLSv1_2}, "")):
            with self.subTest(what):
                d = self.doors(**how)
                with self.assertRaises((_cluster.ClusterError, TimeoutError)) as e:
                    self.fs(d, timeout=20 if want else 0.2).status("/f")
                self.assertIn(want, str(e.exception))
                self.assertNotIn("\n", str(e.exception))
                self.assertEqual(d.asked, [])

    def test_a_server_that_does_not_speak_tls_gets_nothing(self):
        d = self.doors(identity=None, scheme="http")
        with self.assertRaises(TimeoutError):
            self.fs(d, timeout=0.2).status("/f")
        self.assertEqual(d.asked, [])

    def test_a_datanode_of_another_cluster_gets_nothing(self):
        d, other = self.doors(), self.doors(identity=pem("stranger"))
        d.files["/f"] = b"x"
        d.url = other.url  # where it sends its clients
        os.environ["HOPS_WEBHDFS"] = "127.0.0.1:%d" % d.server.server_address[1]
        with mock.patch.object(_http, "time", harness.Pauses()), self.assertRaisesRegex(OSError, "shows no certificate of cluster CID-test that is good"):
            _webhdfs.WebHDFS(timeout=20).read("/f")
        self.assertEqual(other.asked, [])

    def test_what_is_missing_is_one_line(self):
        d = self.doors()
        fs = self.fs(d)

        def says(want):
            with self.assertRaises(_cluster.ClusterError) as e:
                fs.status("/f")
            self.assertIn(want, str(e.exception))
            self.assertNotIn("\n", str(e.exception))
            self.assertEqual(d.asked, [])

        self.write(credentials("ha-hdfs:other"))
        says("nothing here proves who is to act: this container has no delegation token for it (HADOOP_TOKEN_FILE_LOCATION)")
        self.write(credentials("ha-hdfs:lab", kind=b"RM_DELEGATION_TOKEN"))
        says("this container has no delegation token for it")
        self.write(credentials("ha-hdfs:lab", owner="bob"))
        says("the delegation token for ha-hdfs:lab is of user bob, and ann is to act")
        self.write(b"PK\3\4")
        says("it does not begin as a file of Hadoop's credentials does")
        os.environ["HADOOP_TOKEN_FILE_LOCATION"] += "x"
        says("which is not there")
        del os.environ["HADOOP_TOKEN_FILE_LOCATION"]
        says("this container has no delegation token for it")
        vars(_http._local).clear()
        os.environ["HOPS_AUTHORITY"] = pem("foreign-authority") + "x"
        says("the certificates of the cluster's authorities: " + os.environ["HOPS_AUTHORITY"])
        os.environ["HOPS_AUTHORITY"] = os.path.join(self.dir, "tokens")
        says("the certificates of the cluster's authorities")
        del os.environ["HOPS_AUTHORITY"]
        says("is on another machine, and the certificate of the cluster's authority is not known here")

    def test_authorities_that_were_rotated_are_read_anew(self):
        d = self.doors()
        path = os.environ["HOPS_AUTHORITY"] = os.path.join(self.dir, "authority.pem")

        def roots(name):
            with open(path + ".new", "w") as f, open(pem(name)) as of:
                f.write(of.read())
            os.rename(path + ".new", path)

        roots("foreign-authority")
        fs = self.fs(d)
        with self.assertRaisesRegex(_cluster.ClusterError, "no certificate of cluster CID-other"):
            fs.exists("/f")
        roots("authority")
        self.assertFalse(fs.exists("/f"))

    def test_a_network_that_is_trusted_is_configured(self):
        conf = os.environ["HADOOP_CONF_DIR"] = os.path.join(self.dir, "conf")
        os.mkdir(conf)
        with open(os.path.join(conf, "core-site.xml"), "w") as f:
            f.write("<configuration><property><name>hops.cluster.roots</name><value>none</value></property></configuration>")
        d = self.doors(identity=None, scheme="http")
        self.assertFalse(self.fs(d).exists("/f"))
        self.assertEqual(d.asked, [("namenode", "ann", None, None)])

    def test_namenodes_and_resource_managers_that_took_the_place_of_others_are_found(self):
        d = self.doors(good=self.text())
        d.files["/f"] = b"x"
        m = Manager(pem("resourcemanager"), [(200, {"id": "a"})])
        self.addCleanup(m.close)
        conf = os.environ["HADOOP_CONF_DIR"] = os.path.join(self.dir, "conf")
        os.mkdir(conf)
        os.environ.update(HOPS_WEBHDFS="127.0.0.1:1", HOPS_RM="127.0.0.1:1", HOPS_TOKEN=os.path.join(self.dir, "token"))
        with open(os.environ["HOPS_TOKEN"], "w") as f:
            f.write("sesame")
        fs, jobs = _webhdfs.WebHDFS(timeout=60), _jobs.Jobs(timeout=60)
        for site, name, at in (("hdfs", "dfs.namenode.http-address.lab.nn9", d), ("yarn", "yarn.resourcemanager.webapp.address.rm9", m)):
            with open(os.path.join(conf, site + "-site.xml"), "w") as f:
                f.write("<configuration><property><name>%s</name><value>%s</value></property></configuration>" % (name, at.url.partition("://")[2]))
        self.assertEqual(fs.read("/f"), b"x")
        self.assertEqual(jobs.get("a"), {"id": "a"})

    def test_a_child_that_was_forked_has_connections_of_its_own(self):
        d = self.doors(good=self.text())
        fs = self.fs(d)
        fs.create("/f", b"x")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if not vars(_http._local) and fs.read("/f") == b"x" else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(fs.read("/f"), b"x")


class Manager(fakes.Fake):
    """A resource manager that keeps what it was shown."""

    def __init__(self, identity, answers):
        self.answers, self.asked = list(answers), []
        super().__init__(identity)

    def serve(self, h):
        self.asked.append((h.command, h.path, h.headers.get("Host"), h.headers.get("Authorization"), h.body()))
        status, body, *headers = self.answers.pop(0)
        h.answer(status, body, headers)


class Logins(Elsewhere):
    """Programs of a user who has logged in, outside of containers."""

    def setUp(self):
        super().setUp()
        for name in ("HOPS_CONTAINER_ID", "HOPS_FS", "HOPS_AUTHORITY", "HADOOP_TOKEN_FILE_LOCATION"):
            del os.environ[name]

    def login(self, cluster, authority, doors):
        os.makedirs(os.path.join(self.dir, ".hops"))
        path = os.path.join(self.dir, ".hops", "login")
        with open(path, "w") as f, open(pem(authority)) as roots:
            json.dump({"version": 1, "cluster": cluster, "user": "ann", "token": "secret-of-" + cluster, "authorities": roots.read(),
                       "namenodes": [{"http": doors.url.partition("://")[2]}]}, f)
        os.chmod(path, 0o600)

    def configure(self, doors, authority):
        conf = os.environ["HADOOP_CONF_DIR"] = os.path.join(self.dir, "conf")
        os.makedirs(conf)
        for name, key, value in (("core-site.xml", "hops.cluster.roots", pem(authority)), ("hdfs-site.xml", "dfs.namenode.http-address", doors.url.partition("://")[2])):
            with open(os.path.join(conf, name), "w") as f:
                f.write("<configuration><property><name>%s</name><value>%s</value></property></configuration>" % (key, value))

    def test_the_token_of_a_login_stays_in_its_cluster(self):
        d = self.doors()
        d.files["/f"] = b"x"
        self.login("CID-other", "foreign-authority", d)
        self.configure(d, "authority")
        with self.assertRaisesRegex(_cluster.ClusterError, "is a server of cluster CID-test, and the login .* is for cluster CID-other"):
            _webhdfs.WebHDFS(timeout=20).status("/f")
        self.assertEqual(d.asked, [])

    def test_a_login_for_the_configured_cluster(self):
        d = self.doors()
        d.files["/f"] = b"x"
        self.login("CID-test", "authority", d)
        self.configure(d, "authority")
        self.assertEqual(_webhdfs.WebHDFS(timeout=20).read("/f"), b"x")
        self.assertEqual({a[3] for a in d.asked}, {"Bearer secret-of-CID-test"})

    def test_an_outage_moves_nobody_to_another_cluster(self):
        d = self.doors()
        self.configure(d, "authority")
        self.assertEqual(_cluster.newer(["https://elsewhere:1"], *_cluster.NAMENODES), ["https://elsewhere:1", "http://" + d.url.partition("://")[2]])
        os.environ["HOPS_WEBHDFS"] = "elsewhere:1"
        self.assertEqual(_cluster.newer(["http://elsewhere:1"], *_cluster.NAMENODES), ["http://elsewhere:1"])


class Jobs(Elsewhere):
    def setUp(self):
        super().setUp()
        os.environ["HOPS_TOKEN"] = os.path.join(self.dir, "token")
        with open(os.environ["HOPS_TOKEN"], "w") as f:
            f.write("sesame\n")

    def manager(self, *answers, identity=pem("resourcemanager")):
        m = Manager(identity, answers)
        self.addCleanup(m.close)
        return m

    def test_a_request_is_signed_for_the_one_that_leads(self):
        leader = self.manager((201, {"id": "application_1_0002"}))
        other = self.manager((307, {}, ("Location", leader.url + "/api/v1/jobs")))
        os.environ["HOPS_RM"] = other.url.partition("://")[2]
        self.assertEqual(_jobs.Jobs().submit({"argv": ["true"]}, "key"), "application_1_0002")
        for m in (other, leader):
            (method, path, host, given, body), = m.asked
            self.assertEqual((method, path, host), ("POST", "/api/v1/jobs", urllib.parse.urlsplit(m.url).netloc))
            number = int(given.partition("number=")[2].partition(",")[0])
            self.assertEqual(given, _signature.sign(_signature.key("sesame", "resourcemanager"), method, path, host, "container_1_0001_01_000002", number, body))

    def test_who_is_not_spoken_to(self):
        m = self.manager(identity=pem("namenode"))
        os.environ["HOPS_RM"] = m.url.partition("://")[2]
        with self.assertRaisesRegex(_cluster.ClusterError, "is no resourcemanager of cluster CID-test"):
            _jobs.Jobs().get("application_1_0001")
        del os.environ["HOPS_TOKEN"]
        m = self.manager()
        os.environ["HOPS_RM"] = m.url.partition("://")[2]
        with self.assertRaisesRegex(_cluster.ClusterError, "this container has no token to sign with"):
            _jobs.Jobs().get("application_1_0001")
        self.assertEqual(m.asked, [])


class Credentials(unittest.TestCase):
    def test_what_hadoop_writes(self):
        (t,) = _token.parse(JAVA)
        self.assertEqual((t.kind, t.service, t.owner, t.text), ("HDFS_DELEGATION_TOKEN", "127.0.0.1:8020", "alice", JAVA_TEXT))
        self.assertNotIn(base64.urlsafe_b64encode(bytes.fromhex("8e6fc368ff44194213fda6a8968571173c7e8092")).decode()[:10], repr(t))

    def test_what_is_damaged(self):
        for n in range(len(JAVA)):
            with self.assertRaises(_token.Malformed):
                _token.parse(JAVA[:n])
        for what in (b"", JAVA + b"\0", b"HDTS\1", b"HDTS\0\x8d\x7f\xff\xff", b"HDTS\0\xff", b"HDTS\0\1\x8d\x7f\xff\xff", b"HDTS\0\0\x8d\x7f\xff\xff",
                     credentials("s").replace(b"\0\3ann", b"\1\3ann"), b"HDTS\0\1\x88" + b"\xff" * 8):
            with self.assertRaises(_token.Malformed):
                _token.parse(what)

    def test_the_token_of_a_filesystem(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "tokens")
            with open(path, "wb") as f:
                f.write(JAVA)
            old = os.environ.get(_token.VARIABLE)
            os.environ[_token.VARIABLE] = path
            try:
                for fs, addresses, found in (("hdfs://127.0.0.1:8020", [], True), ("hdfs://127.0.0.1", [], True), ("hdfs://localhost:8020", [], True),
                                             ("hdfs://lab", ["https://127.0.0.1:8020"], True), ("hdfs://lab", [], False), ("", [], False),
                                             ("hdfs://127.0.0.1:8021", ["http://127.0.0.1:9870"], False)):
                    self.assertEqual(_token.find(fs, addresses) is not None, found, fs)
            finally:
                os.environ.pop(_token.VARIABLE)
                if old:
                    os.environ[_token.VARIABLE] = old


if __name__ == "__main__":
    unittest.main()
