"""The executor's part of a gang: the ports of a member, and where the others find it."""
import array
import fcntl
import os
import socket
import struct
import urllib.parse

SIOCGIFADDR = 0x8915  # linux/sockios.h

# Frameworks whose servers bind with SO_REUSEADDR: their ports stay reserved while they run.
_REUSING = {"torch", "tensorflow", "parameter_server", "jax"}
# Frameworks that break after a fork of a process that has imported them.
UNFORKABLE = {"tensorflow", "parameter_server", "jax"}


def reserve(part):
    """The ports of a member, by its part of the gang. What serves at that of Horovod's chief begins at once."""
    if part["framework"] == "horovod" and part["ports"]:
        from hops import _horovod
        return _horovod.Rendezvous(part["world"])
    return Ports(part["ports"], part["framework"])


class Ports:
    """Ports of all addresses that nobody else is given. The sockets are bound but do not listen: who sets SO_REUSEADDR as they do
    may bind the ports too, as long as none of them listens (Linux, inet_csk_get_port); and neither bind to port 0 nor an
    outgoing connection gets one of them."""

    def __init__(self, count, framework):
        self._sockets = []
        self.keep = framework in _REUSING
        for _ in range(count):
            try:
                s = socket.socket(socket.AF_INET6)
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("::", 0))
            except OSError:
                s = socket.socket()
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind(("0.0.0.0", 0))
            self._sockets.append(s)
        self.numbers = [s.getsockname()[1] for s in self._sockets]

    def starting(self):
        """The process is about to start: ports that it cannot share are given up."""
        if not self.keep:
            self.close()

    def close(self):
        for s in self._sockets:
            s.close()


def address(controller):
    """Where the other members reach this node: as the cluster knows it (NM_HOST), or as the controller, by its URL, sees it."""
    if os.environ.get("NM_HOST"):
        return os.environ["NM_HOST"]
    parts = urllib.parse.urlsplit(controller)
    family, kind, protocol, _, target = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as s:
        s.connect(target)  # a datagram socket sends nothing by that, it only chooses a route
        return s.getsockname()[0]


def interface(host):
    """The name of the network interface that has the IPv4 address of host; "" if there is none."""
    try:
        wanted = socket.inet_aton(socket.gethostbyname(host))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for _, name in socket.if_nameindex():
                request = array.array("B", struct.pack("256s", name.encode()[:15]))
                try:
                    fcntl.ioctl(s, SIOCGIFADDR, request, True)
                except OSError:
                    continue  # it has no IPv4 address
                if request[20:24].tobytes() == wanted:
                    return name
    except OSError:
        pass
    return "lo" if host.startswith("127.") else ""
