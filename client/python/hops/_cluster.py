"""Where the cluster is: environment variables of a container first, then HOPS_LOGIN, Hadoop's configuration files, the user's login,
and the user's `hops dev`."""
import fcntl
import getpass
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ET

from hops import _login
from hops._login import ClusterError


def user():
    """Name of the acting user: HADOOP_USER_NAME, else the login's, else the user of the process."""
    name = os.environ.get("HADOOP_USER_NAME")
    if not name and not os.environ.get("HOPS_WEBHDFS") and not os.environ.get("HOPS_RM"):
        login = _login.chosen()
        name = login.user if login else None
    return name or getpass.getuser()


SITE_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")


def _conf():
    """Directory with the cluster's configuration, found as the command hops finds it: HADOOP_CONF_DIR, else that of the
    user's `hops dev`, which must run."""
    directory = os.environ.get("HADOOP_CONF_DIR")
    if directory:
        if not _has_site(directory):
            raise ClusterError("HADOOP_CONF_DIR is %s, which holds none of %s: name the directory with the cluster's configuration"
                               % (directory, ", ".join(SITE_FILES)))
        return directory
    dev = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "hops", "dev")
    if not _has_site(os.path.join(dev, "conf")):
        raise ClusterError("no cluster is configured: start one with `hops dev`, log in to one (`hops login`), or set HADOOP_CONF_DIR to the directory with its core-site.xml")
    if _dev_ended(dev):
        raise ClusterError("cluster: %s, not running: start it with `hops dev`" % dev)
    return os.path.join(dev, "conf")


def _has_site(directory):
    return any(os.path.exists(os.path.join(directory, name)) for name in SITE_FILES)


def _dev_ended(directory):
    """Whether the directory is that of a `hops dev` that does not run: it locks a file while it does."""
    try:
        with open(os.path.join(directory, "lock")) as f:
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    except OSError:
        return False


def _site(name):
    path = os.path.join(_conf(), name)
    if not os.path.exists(path):
        return {}
    try:
        root = ET.parse(path).getroot()
    except ET.ParseError as e:
        raise ClusterError("%s is not XML: %s" % (path, e)) from None
    return {p.findtext("name", "").strip(): p.findtext("value", "").strip() for p in root.iter("property")}


def _addresses(text):
    return ["http://" + a if "://" not in a else a for a in (s.strip().rstrip("/") for s in text.split(",")) if a]


def webhdfs():
    """HTTP addresses of the namenodes."""
    if os.environ.get("HOPS_WEBHDFS"):
        return _addresses(os.environ["HOPS_WEBHDFS"])
    login = _login.chosen()
    if login:
        return login.namenodes
    found = [v for k, v in sorted(_site("hdfs-site.xml").items()) if k.startswith("dfs.namenode.http-address") and v]
    if not found:  # Hadoop's port, on the host of the filesystem
        uri = default_fs()
        host = urllib.parse.urlsplit(uri).hostname
        if not host:
            raise ClusterError("%s: neither dfs.namenode.http-address nor a host in fs.defaultFS (%s) says where the namenode's HTTP is" % (_conf(), uri))
        found = ["[%s]:9870" % host if ":" in host else "%s:9870" % host]
    return _addresses(",".join(found))


def resource_managers():
    """HTTP addresses of the resource managers."""
    if os.environ.get("HOPS_RM"):
        return _addresses(os.environ["HOPS_RM"])
    login = _login.chosen()
    if login:
        if not login.managers:
            raise ClusterError("the login %s names no resource manager: is there one in this cluster?" % login.path)
        return login.managers
    site = _site("yarn-site.xml")
    found = [v for k, v in sorted(site.items()) if k.startswith("yarn.resourcemanager.webapp.address") and v]
    if not found and site.get("yarn.resourcemanager.hostname"):
        found = [site["yarn.resourcemanager.hostname"] + ":8088"]
    if not found:
        raise ClusterError("%s does not say yarn.resourcemanager.webapp.address: is there a resource manager in this cluster?"
                           % os.path.join(_conf(), "yarn-site.xml"))
    return _addresses(",".join(found))


def default_fs():
    """URI of the filesystem, as Hadoop programs write it."""
    uri = os.environ.get("HOPS_FS")
    if uri:
        return uri
    login = _login.chosen()
    if login:
        return "hdfs://" + login.cluster
    uri = _site("core-site.xml").get("fs.defaultFS")
    if not uri:
        raise ClusterError("%s does not say fs.defaultFS" % os.path.join(_conf(), "core-site.xml"))
    return uri


_said = set()


def waiting(problem):
    """Tell a person what is waited for, once. The programs of a container have nobody who reads that."""
    if not os.environ.get("HOPS_CONTAINER_ID") and not _said:
        _said.add(problem)
        print("waiting for the cluster, Ctrl-C ends it: %s" % problem, file=sys.stderr, flush=True)


def token():
    """The container's secret, or None outside a container. It is read from a file and never put into the environment."""
    path = os.environ.get("HOPS_TOKEN")
    if not path:
        return None
    with open(path) as f:
        return f.read().strip()


def split(address):
    """(host, port) of an http or https address."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ClusterError("%s is not an http address" % address)
    return parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]


def secure(address):
    """Whether a server is spoken to by TLS, with the user's login."""
    return address.startswith("https://")


def claim(address, user):
    """Parameters that say to a server who acts: what it is told in plain is a name; with a login the token says it."""
    if not secure(address):
        return {"user.name": user}
    return _required(address).claim(user)


def _required(address):
    login = _login.chosen()
    if login is None:
        raise ClusterError("%s is spoken to by TLS, and nobody has logged in on this machine: run `hops login`" % address)
    return login


def connection(address, role, timeout):
    """A connection by TLS to a server of the login's cluster with a role."""
    return _login.Connection(_required(address), role, *split(address), timeout)


def authorization(address):
    """Headers that prove to a server who acts."""
    return _required(address).authorization() if secure(address) else {}


def follow(address, location):
    """The address of a server to which another one, at address, sends its client. A token goes nowhere in plain."""
    parts = urllib.parse.urlsplit(location)
    if secure(address) and parts.scheme != "https":
        raise ClusterError("%s://%s is not https: the token is not sent there" % (parts.scheme, parts.netloc))
    return "%s://%s" % (parts.scheme, parts.netloc)
