#!/bin/sh
# On removal, not on an upgrade: stops and disables the servers. Data, keys and the user stay.
set -e
case "$1" in
remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl --no-reload disable --now hops.target hops@namenode.service hops@datanode.service hops@resourcemanager.service hops@nodemanager.service || true
  fi
  ;;
esac
