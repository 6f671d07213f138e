// Package blockmanager knows which datanode holds which replica of which block, and what has to be done about it:
// reports in, work orders out. It is pure: time is an argument, choices among equals come from a seed, and nothing
// happens between calls. It is not safe for concurrent use; the server holds one lock around it.
//
// Three parties speak to a Manager.
//
//	namespace   Put, Remove             which blocks there are, in which generation and length, how many replicas wanted
//	datanodes   Register, Beat,         what lies where; Beat keeps a node alive
//	            Report, Changes
//	the server  Tick, Orders            time passes; what a node should do now (only while leading, Lead ... Follow)
//	            Expect, Recover, Watch  the pipeline of a block being written, its recovery, who waits for it
//
// Nothing here is replicated or stored: every namenode keeps its own Manager from the same reports, so that the next
// leader knows where the blocks are. What a leader alone knows (copies under way, expected pipelines) may be lost.
//
// # Blocks
//
// A complete block has a generation and a length; a finalized replica of exactly these is good and kept as one word.
// Everything else is odd: replicas of another generation or length, damaged ones, those being written, and every
// replica of a block that is open. When Put changes a block, its replicas are judged anew. A replica of an unknown
// block is an orphan: on a follower perhaps of a block whose command has not arrived yet, on the leader of a file deleted.
//
// A complete block whose replicas are all good takes 32 bytes, and up to two for each replica in the set of its volume (quiet.go, idset.go): 41
// bytes with three replicas, BenchmarkBlockMemory.
//
// A block group is kept as its internal blocks, each a block that is wanted once (group.go). One that is nowhere is computed from others (Orders.Rebuild),
// and the group counts as one block, missing when too few are left.
//
// # Deleting
//
// Deleting the wrong replica is the only mistake here that cannot be undone, so every deletion passes three gates:
//
//  1. every live datanode has reported in full, so that nothing is called surplus or forgotten for lack of knowledge; one
//     that does not come to the end of a report for minutes is not waited for, and what it may have does not count as there;
//  2. for surplus replicas of a living block: the nodes involved have registered and reported since this leader's term
//     began (Orders.Report asks them to), so that deletions ordered by the leader before are known (with one wanted
//     replica out of two, two leaders could otherwise each delete another one);
//  3. at the moment an order is sent (again), the block still has its wanted number of other live good replicas.
//
// While somebody has doubts about a replica of a block (doubt.go), only replicas that were verified since count in the third.
//
// An orphan is deleted only if its id is not above the highest id ever handed out: a namenode that lost the end of its
// log must not delete what it forgot. Groups have a highest id of their own.
package blockmanager
