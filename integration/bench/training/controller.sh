#!/bin/sh
# What one controller takes, with its journal on the filesystem of `hops dev` (one datanode, fsync) and in memory:
#   integration/bench/training/controller.sh HOPS
# 16 clients that ask and tell; 200 executors that report, send 100 metrics a report, and wait for decisions; 10,000 trials in the state machine.
set -eu
hops=$1
dir=$(mktemp -d)
dev=
end() {
	[ -z "$dev" ] || { kill "$dev"; wait "$dev" || true; }
	rm -rf "$dir"
}
trap end EXIT
"$hops" dev --data "$dir/data" --ports random --gpus none >"$dir/log" 2>&1 &
dev=$!
until grep -q '^ready in' "$dir/log"; do
	kill -0 "$dev" 2>/dev/null || { cat "$dir/log" >&2; exit 1; }
	sleep 0.1
done
go test -c -o "$dir/controller.test" ./training/controller
cd training/controller
bench() { # NAME ROUNDS [-cluster DIR]
	name=$1 rounds=$2
	shift 2
	"$dir/controller.test" -test.run '^$' -test.bench "Benchmark$name\$" -test.benchtime "$rounds" -test.count "${COUNT:-3}" "$@" | grep ns/op | sed 's/ \+/ /g; s/\t\+/  /g'
}
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores"
echo "journal on the filesystem:"
bench AskTell 10000x -cluster "$dir/data/conf"
bench Reports 20000x -cluster "$dir/data/conf"
bench Metrics 3000x -cluster "$dir/data/conf"
bench Decisions 2000x -cluster "$dir/data/conf"
echo "journal in memory:"
bench AskTell 10000x
bench Reports 20000x
bench Metrics 3000x
bench Decisions 2000x
echo "10,000 trials of 27 epochs, ASHA:"
bench TenThousandTrials 1x
echo "load $(cut -d' ' -f1-3 /proc/loadavg)"
