"""Where the cluster is: environment variables of a container first, then Hadoop's configuration files, then this machine."""
import getpass
import os
import urllib.parse
import xml.etree.ElementTree as ET


class ClusterError(Exception):
    """The cluster cannot be found or used; the message says what to do."""


def user():
    """Name of the acting user: HADOOP_USER_NAME, else the user of the process."""
    return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()


def _site(name):
    directory = os.environ.get("HADOOP_CONF_DIR")
    path = os.path.join(directory, name) if directory else ""
    if not path or not os.path.exists(path):
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
    site = _site("hdfs-site.xml")
    found = [v for k, v in sorted(site.items()) if k.startswith("dfs.namenode.http-address")]
    return _addresses(",".join(found) or "127.0.0.1:9870")


def resource_managers():
    """HTTP addresses of the resource managers."""
    if os.environ.get("HOPS_RM"):
        return _addresses(os.environ["HOPS_RM"])
    site = _site("yarn-site.xml")
    found = [v for k, v in sorted(site.items()) if k.startswith("yarn.resourcemanager.webapp.address")]
    return _addresses(",".join(found) or "127.0.0.1:8088")


def default_fs():
    """URI of the filesystem, as Hadoop programs write it."""
    return os.environ.get("HOPS_FS") or _site("core-site.xml").get("fs.defaultFS") or "hdfs://127.0.0.1:8020"


def token():
    """The container's secret, or None outside a container. It is read from a file and never put into the environment."""
    path = os.environ.get("HOPS_TOKEN")
    if not path:
        return None
    with open(path) as f:
        return f.read().strip()


def split(address):
    """(host, port) of an http address."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "http" or not parts.hostname:
        raise ClusterError("%s is not an http address" % address)
    return parts.hostname, parts.port or 80
