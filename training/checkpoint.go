package training

// File is one file of a checkpoint.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// CRC32 is the checksum of its bytes in zlib's form, which Python computes at the speed of memory with its standard library.
	// It is 0 for a blob, which is checked by the SHA-256 in its name.
	CRC32 uint32 `json:"crc32"`
	// Blob is the name under which the bytes lie in the experiment's directory of blobs, where other checkpoints may use
	// them too. Empty: they lie in the checkpoint's own directory, under Name.
	Blob string `json:"blob,omitempty"`
}

// Checkpoint is a committed directory of files from which a trial can go on at Step+1. It is committed in two phases:
// the files and their manifest are written under another name, the directory is renamed, and only then is the
// controller told, which records it in its journal. A checkpoint that is not in the journal does not exist.
type Checkpoint struct {
	Step    int64 `json:"step"`
	Attempt int   `json:"attempt"`
	// URI is the directory's path in the cluster's filesystem.
	URI    string  `json:"uri"`
	Files  []File  `json:"files"`
	Metric *Metric `json:"metric,omitempty"`
	Time   Millis  `json:"time"`
}

// Retention says which checkpoints of a trial are kept. The newest one is always kept while the trial may go on.
type Retention struct {
	// Last keeps the newest k. Default 1; -1 keeps all.
	Last int `json:"last"`
	// Best keeps the k best by metric. Default 1.
	Best int `json:"best"`
	// Every keeps each one whose step is a multiple. Default 0, none.
	Every int `json:"every"`
	// Rungs keeps what a trial was at each rung of the search: the newest checkpoint at or before its budget.
	Rungs bool `json:"rungs,omitempty"`
}
