// Package differ runs the same random operations on two file systems that speak Hadoop's ClientProtocol and looks for
// differences in what they answer: the result or the exception's class after each operation, and from time to time
// everything that can be seen of the tree. A difference is shrunk to the shortest sequence that still shows it.
//
// Operations go out as they are, without the client's own checks, so odd paths and flags reach the servers. Data is written
// and read by the Go client. Sequences are made from a seed and a number: a run repeats with the same two.
//
// Times are compared as what they are: those that were set, exactly; those that a server took from its clock, by the
// operation during which they were taken. For that no operation begins in the millisecond in which the one before ended.
package differ
