// Command hadoop is the compatibility suite of `make compat`: it starts an unmodified HDFS and a hops cluster side by side
// on loopback, drives both with the clients that people use (Hadoop's FsShell, hops fs, the Go library colinmarc/hdfs,
// hdfs-native, WebHDFS by curl, by fsspec and by recorded exchanges) and with random operations, and compares what they answer. It ends
// with a table; DESIGN.md says how the comparison works and what the table means.
//
//	go run ./integration/hadoop                     everything, as `make compat`
//	go run ./integration/hadoop -only fsshell       some rows of it
//	go run ./integration/hadoop fuzz -seconds 600   the differential namespace test alone, as `make compat-fuzz`
package main
