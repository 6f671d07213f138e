#!/bin/sh
# Makes the user and the directories (as tmpfiles.d does at each boot). Servers are neither started nor restarted: that is the operator's.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
  systemd-sysusers hops.conf
elif ! getent passwd hops >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/hops --no-create-home --shell /usr/sbin/nologin --comment "hops servers" hops
fi
install -d -o hops -g hops -m 0755 /etc/hops
install -d -o hops -g hops -m 0711 /var/lib/hops
install -d -o hops -g hops -m 0750 /var/log/hops
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
