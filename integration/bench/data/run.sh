#!/bin/sh
# What an epoch over many small files costs: a cluster of its own (hops dev), and HDFS through pyarrow if HDFS_URI says where the same
# files are (epoch.py fill makes them; epoch.py says what pyarrow needs). FILES, ROUNDS and PYTHON may be set.
#
#     integration/bench/data/run.sh bin/hops
set -eu
hops=$1
here=$(dirname "$0")
work=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
server=
"${PYTHON:-python3}" "$here/epoch.py" fill "$work/files" --files "${FILES:-100000}"
"$hops" dev --ephemeral --ports random --gpus none --datanodes 1 -D dfs.replication=1 >"$work/log" 2>&1 &
server=$!
for _ in $(seq 300); do
	grep -q '^ready' "$work/log" && break
	sleep 0.2
done
HADOOP_CONF_DIR=$(sed -n 's/.*export HADOOP_CONF_DIR=//p' "$work/log" | head -1)
[ -n "$HADOOP_CONF_DIR" ] || { cat "$work/log"; exit 1; }
export HADOOP_CONF_DIR
"$hops" fs -put -d -t 16 "$work/files" /epoch
"${PYTHON:-python3}" "$here/epoch.py" run --hops /epoch ${HDFS_URI:+--hdfs "$HDFS_URI"} --rounds "${ROUNDS:-3}" --server "$server" ${HDFS_SERVERS:+--hdfs-server "$HDFS_SERVERS"}
