// Package resourcemanager names the things of the cluster: resources and GPUs, nodes, queues, applications with their
// attempts and containers, what they ask for, and why an ask has to wait. The names are YARN's wherever YARN has one.
//
// The package has no behaviour beyond the words themselves. Scheduling is resourcemanager/scheduler, the replicated
// state over these words resourcemanager/state, what talks to node managers, application masters and users
// resourcemanager/server and resourcemanager/rest.
//
// Values of these types are shared between goroutines once they are in the state: nobody changes one, a change is a
// copy.
package resourcemanager
