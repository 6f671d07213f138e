"""Where the cluster is, and by what its servers and this process know each other: environment variables of a container first, then
HOPS_LOGIN, Hadoop's configuration files, the user's login, the user's `hops dev`, and the configuration of this machine's servers."""
import fcntl
import getpass
import os
import sys
import urllib.parse
import xml.etree.ElementTree as ET

from hops import _login, _signature, _token
from hops._login import ClusterError


def user():
    """Name of the acting user: HADOOP_USER_NAME, else that of the delegation token, else the login's, else the user of the process."""
    name = os.environ.get("HADOOP_USER_NAME")
    if not name and os.environ.get(_token.VARIABLE):
        token = delegation(webhdfs())
        name = token.owner if token else None
    if not name and not os.environ.get("HOPS_WEBHDFS") and not os.environ.get("HOPS_RM"):
        login = _login.chosen()
        name = login.user if login else None
    return name or getpass.getuser()


# MACHINE has the configuration that the servers of a machine write for its users.
MACHINE = "/etc/hops/conf"
SITE_FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")


def _conf():
    """Directory with the cluster's configuration, found as the command hops finds it: HADOOP_CONF_DIR, else that of the
    user's `hops dev` that runs, else that of the servers of this machine."""
    directory = os.environ.get("HADOOP_CONF_DIR")
    if directory:
        if not _has_site(directory):
            raise ClusterError("HADOOP_CONF_DIR is %s, which holds none of %s: name the directory with the cluster's configuration"
                               % (directory, ", ".join(SITE_FILES)))
        return directory
    dev = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "hops", "dev")
    if (not _has_site(os.path.join(dev, "conf")) or _dev_ended(dev)) and _has_site(MACHINE):
        return MACHINE
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
    found = [v for k, v in sorted(_site("hdfs-site.xml").items()) if k.startswith(NAMENODES[1]) and v]
    if not found:  # Hadoop's port, on the host of the filesystem
        uri = default_fs()
        host = urllib.parse.urlsplit(uri).hostname
        if not host:
            raise ClusterError("%s: neither dfs.namenode.http-address nor a host in fs.defaultFS (%s) says where the namenode's HTTP is" % (_conf(), uri))
        found = ["[%s]:9870" % host if ":" in host else "%s:9870" % host]
    return _addresses(",".join(found))


def newer(known, site, name):
    """Addresses that are known, and those that the configuration has come to name since in properties whose name begins so: servers
    of a machine write it anew when servers of the cluster come and go. The environment of a container stays as it was; elsewhere what
    the environment or a login names may be another cluster than that of the configuration."""
    if not os.environ.get("HADOOP_CONF_DIR"):
        return known
    if not os.environ.get("HOPS_CONTAINER_ID") and (os.environ.get("HOPS_WEBHDFS") or os.environ.get("HOPS_RM") or _login.chosen()):
        return known
    try:
        found = [v for k, v in sorted(_site(site).items()) if k.startswith(name) and v]
    except ClusterError:
        return known
    return known + [a for a in _addresses(",".join(found)) if a not in known]


NAMENODES = "hdfs-site.xml", "dfs.namenode.http-address"
MANAGERS = "yarn-site.xml", "yarn.resourcemanager.webapp.address"


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
    found = [v for k, v in sorted(site.items()) if k.startswith(MANAGERS[1]) and v]
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


def secret():
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
    """Whether a server is spoken to by TLS wherever it is, because its URL says so."""
    return address.startswith("https://")


def connection(address, role, timeout):
    """A connection to a server of the cluster with a role: in plain within this machine, by TLS to others."""
    if secure(address):
        return _login.Connection(_trust, role, *split(address), timeout, always=True)
    return _login.Connection(_elsewhere, role, *split(address), timeout)


def _trust(place):
    """By what servers are known: the certificates that a container was given, those that the configuration names, or those of the login."""
    login = _login.chosen()
    if login:
        return login.trust
    path = os.environ.get("HOPS_AUTHORITY") or _roots()
    if path and path != NONE:
        return _login.roots(path)
    login = _login.default()
    if login:
        return login.trust
    raise ClusterError("%s is on another machine, and the certificate of the cluster's authority is not known here: run `hops login`, "
                       "or set hops.cluster.roots in core-site.xml to the file that has it" % place)


# NONE in place of the name of a file says that servers elsewhere are not known, and are spoken to in plain: in a network that is trusted.
NONE = "none"


def _elsewhere(place):
    return None if _roots() == NONE else _trust(place)


def _roots():
    """hops.cluster.roots of the configuration; empty: it says nothing, or there is none."""
    try:
        return _site("core-site.xml").get("hops.cluster.roots", "")
    except ClusterError:
        return ""


def delegation(addresses):
    """The delegation token for the filesystem, whose namenodes have these HTTP addresses; None: there is none."""
    if not os.environ.get(_token.VARIABLE):
        return None
    try:
        uri = default_fs()
    except ClusterError:
        uri = ""
    return _token.find(uri, addresses)


def proof(address, by_tls, user, token=None):
    """(parameters of the query, headers) that say to a server who acts. In plain that is a name, which the server holds against the
    owner of the connection. By TLS it is proved: by the delegation token, if there is one for this server, else by the login."""
    if not by_tls:
        return {"user.name": user}, {}
    if token:
        if token.owner != user:
            raise _login.Hopeless("the delegation token for %s is of user %s, and %s is to act: take another token, or act as %s" % (
                token.service, token.owner, user, token.owner))
        return {"delegation": token.text}, {}
    login = _login.chosen()
    if not login:  # the configuration names the cluster: a login for another one is nothing to show here
        login = _login.default()
        if login and _trust(address).cluster != login.cluster:
            raise _login.Hopeless("%s is a server of cluster %s, and the login %s is for cluster %s: log in to the first (`hops login`), or "
                                  "take the other's configuration out of HADOOP_CONF_DIR" % (address, _trust(address).cluster, login.path, login.cluster))
    if login:
        return login.claim(user), login.authorization()
    raise _login.Hopeless("%s is on another machine, and nothing here proves who is to act: %s" % (
        address, "this container has no delegation token for it (HADOOP_TOKEN_FILE_LOCATION)" if os.environ.get("HOPS_CONTAINER_ID") else
        "run `hops login`, or set HADOOP_TOKEN_FILE_LOCATION to a file of `hops fetchdt`"))


def signed(address, method, target, body):
    """Headers of a request of this container to a resource manager, signed with a key that follows from its token: it acts as the
    user of its job."""
    host, number = urllib.parse.urlsplit(address).netloc, _signature.number()
    container = os.environ["HOPS_CONTAINER_ID"]
    given = secret()
    if not given:
        raise _login.Hopeless("%s is on another machine, and this container has no token to sign with (HOPS_TOKEN)" % address)
    key = _signature.key(given, "resourcemanager")
    return {"Host": host, "Authorization": _signature.sign(key, method, target, host, container, number, body)}


def follow(address, location):
    """The address of a server to which another one, at address, sends its client. A token goes nowhere in plain."""
    parts = urllib.parse.urlsplit(location)
    if secure(address) and parts.scheme != "https":
        raise ClusterError("%s://%s is not https: the token is not sent there" % (parts.scheme, parts.netloc))
    return "%s://%s" % (parts.scheme, parts.netloc)
