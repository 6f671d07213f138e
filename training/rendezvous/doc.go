// Package rendezvous says what the processes of a gang have to know of each other: who is which rank, and the environment
// from which each framework forms its group. It starts nothing and opens nothing; collectives are the frameworks' own.
//
//	training.GangShape ──Arrange(seats)──► []Member ──(each joins with its address)──► Plan(framework, members, rank) ──► env, files
//
// Ranks go from 0 without a gap: the chief, the workers, the parameter servers, the evaluator. Neighbours in rank share a host
// as far as they can, because rings of collectives follow the ranks.
//
// What is said of a framework is in its documentation: torch/distributed/run.py and torch/distributed/elastic/agent for torchrun's
// variables; tf.distribute.cluster_resolver.TFConfigClusterResolver for TF_CONFIG; jax/_src/distributed.py and clusters/ for JAX; the
// hostfile of mpirun(1).
package rendezvous
