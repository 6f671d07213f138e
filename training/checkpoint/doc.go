// Package checkpoint says what a checkpoint is in the filesystem (FORMAT.md), when it is whole, which ones are kept, and
// which shared files (blobs) nobody needs any more. It decides; a controller writes down and removes.
//
// Blobs are safe by three rules. The name of a blob is used once: it says the trial, the attempt and the step that wrote
// it. A checkpoint is committed only if each of its blobs is its own or that of a checkpoint which is committed at that
// moment (Blobs.Check). And a blob that no committed checkpoint has any more never comes back. So what retention has
// dropped can be removed late, twice, or by a controller that does not lead any more, and no save that found the blob a
// moment ago can be committed without it: it is told to write it anew.
package checkpoint
