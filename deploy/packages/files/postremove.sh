#!/bin/sh
# /etc/hops (keys) and /var/lib/hops (files of the filesystem) are never removed here.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "$1" = purge ]; then
  rm -rf /var/log/hops
fi
