// Package yarnpb holds the messages of YARN's own protocols, by Hadoop's names and field numbers, for both ends of them: the
// resource manager's ports and the node managers'. Fields that nobody here reads the inside of (placement constraints,
// scheduling requests, reservations) are bytes: what matters is whether they are there.
package yarnpb
