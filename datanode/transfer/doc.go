// Package transfer serves Hadoop's data transfer protocol, version 28: writes through a pipeline of datanodes, reads,
// copies between datanodes and block checksums, over any datanode.BlockStore. internal/dtp is the framing.
//
// One connection has one goroutine. A client's write adds three: one that writes to the replica while the next packets are
// received, one that answers with acknowledgements while earlier packets wait for the datanodes behind, and one that ends the
// connection when the replica is taken away.
package transfer
