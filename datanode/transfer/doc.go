// Package transfer serves Hadoop's data transfer protocol, version 28: writes through a pipeline of datanodes, reads,
// copies between datanodes and block checksums, over any datanode.BlockStore. internal/dtp is the framing.
//
// One connection has one goroutine, which also writes to the replica. A client's write adds one that ends the connection when the
// replica is taken away and, where datanodes are behind, one that answers with acknowledgements while packets wait for them.
package transfer
