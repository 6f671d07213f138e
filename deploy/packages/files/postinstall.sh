#!/bin/sh
# Makes the user and the directories. Servers are neither started nor restarted: that is the operator's, one machine after the other.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers hops.conf
elif ! getent passwd hops >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/hops --no-create-home --shell /usr/sbin/nologin --comment "hops servers" hops
fi
if command -v systemd-tmpfiles >/dev/null 2>&1; then
  systemd-tmpfiles --create hops.conf
else
  install -d -o hops -g hops -m 0755 /etc/hops
  install -d -o hops -g hops -m 0711 /var/lib/hops
  install -d -o hops -g hops -m 0750 /var/log/hops
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
