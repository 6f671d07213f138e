// Package transfer serves Hadoop's data transfer protocol, version 28: writes through a pipeline of datanodes, reads,
// copies between datanodes and block checksums, over any datanode.BlockStore. internal/dtp is the framing.
//
// One connection has one goroutine. A write adds two: one that answers with acknowledgements, so that packets are received
// while earlier ones wait for the datanodes behind, and one that ends the connection when the replica is taken away.
package transfer
