package training

// File is one file of a checkpoint. CRC32 is the checksum of its bytes in zlib's form, which Python computes at
// the speed of memory with its standard library.
type File struct {
	Name  string `json:"name"`
	Size  int64  `json:"size"`
	CRC32 uint32 `json:"crc32"`
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

// ManifestName is the file that ends a checkpoint's directory.
const ManifestName = "MANIFEST.json"

// Manifest is the content of MANIFEST.json, written last.
type Manifest struct {
	Version int     `json:"version"` // 1
	Trial   TrialID `json:"trial"`
	Attempt int     `json:"attempt"`
	Step    int64   `json:"step"`
	Files   []File  `json:"files"`
}

// Retention says which checkpoints of a trial are kept. The newest one is always kept while the trial may go on.
type Retention struct {
	// Last keeps the newest k. Default 1; -1 keeps all.
	Last int `json:"last"`
	// Best keeps the k best by metric. Default 1.
	Best int `json:"best"`
	// Every keeps each one whose step is a multiple. Default 0, none.
	Every int `json:"every"`
}

// Keep marks the checkpoints to keep; those given are of one trial in order of commit.
func (r Retention) Keep(all []Checkpoint, d Direction) []bool {
	keep := make([]bool, len(all))
	for i := range all {
		newest := len(all) - i
		keep[i] = r.Last < 0 || newest <= max(r.Last, 1) || r.Every > 0 && all[i].Step%int64(r.Every) == 0
		if keep[i] || r.Best <= 0 || all[i].Metric == nil || !all[i].Metric.Finite() {
			continue
		}
		better := 0
		for j := range all {
			if m := all[j].Metric; j != i && m != nil && m.Finite() {
				if d.Better(m.Value, all[i].Metric.Value) || m.Value == all[i].Metric.Value && j > i {
					better++
				}
			}
		}
		keep[i] = better < r.Best
	}
	return keep
}
