// Package diskplan is what hdfs diskbalancer and datanodes say to each other: plans to move replicas between the volumes of a datanode, and how far one
// is, in the JSON of Hadoop 3.4 (NodePlan, DiskBalancerWorkStatus). It also makes plans.
package diskplan

import (
	"cmp"
	"crypto/sha1" //nolint:gosec // Hadoop's name of a plan, no secret
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Version is that of the plans, DiskBalancerCLI.PLAN_VERSION.
const Version = 1

// The keys of getDiskBalancerSetting.
const (
	SettingVolumes   = "DiskBalancerVolumeName"
	SettingBandwidth = "DiskBalancerBandwidth"
)

const (
	// DefaultThreshold is from how many percent of difference on volumes are balanced (dfs.disk.balancer.plan.threshold.percent).
	DefaultThreshold = 10
	// MaxBytes bounds the text of a plan. One of a thousand volumes has a tenth of that.
	MaxBytes = 8 << 20
	// maxSteps bounds the moves of a plan.
	maxSteps = 16384
)

// Volume is DiskBalancerVolume. Java wants the capacity in front of what is used.
type Volume struct {
	Path        string  `json:"path"`
	Capacity    int64   `json:"capacity"`
	StorageType string  `json:"storageType"`
	Used        int64   `json:"used"`
	Reserved    int64   `json:"reserved"`
	UUID        string  `json:"uuid"`
	Failed      bool    `json:"failed"`
	Density     float64 `json:"volumeDataDensity"`
	Skip        bool    `json:"skip"`
	Transient   bool    `json:"transient"`
	ReadOnly    bool    `json:"readOnly"`
}

// Step is MoveStep: so many bytes are to go from one volume to another. What is 0 is left to the datanode. Bandwidth is in MiB a second.
type Step struct {
	Class       string  `json:"@class"`
	Source      Volume  `json:"sourceVolume"`
	Destination Volume  `json:"destinationVolume"`
	Ideal       float64 `json:"idealStorage"`
	Bytes       int64   `json:"bytesToMove"`
	Set         string  `json:"volumeSetID"`
	MaxErrors   int64   `json:"maxDiskErrors,omitempty"`
	Tolerance   int64   `json:"tolerancePercent,omitempty"`
	Bandwidth   int64   `json:"bandwidth,omitempty"`
}

const stepClass = "org.apache.hadoop.hdfs.server.diskbalancer.planner.MoveStep"

// Plan is NodePlan. Time is in milliseconds since 1970.
type Plan struct {
	Steps    []Step `json:"volumeSetPlans"`
	NodeName string `json:"nodeName"`
	NodeUUID string `json:"nodeUUID"`
	Port     int    `json:"port"`
	Time     int64  `json:"timeStamp"`
}

// Parse reads a plan.
func Parse(text []byte) (*Plan, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the plan has %d bytes, %d are allowed", len(text), MaxBytes)
	}
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("not a plan: %w", err)
	}
	if len(p.Steps) > maxSteps {
		return nil, fmt.Errorf("the plan has %d moves, %d are allowed", len(p.Steps), maxSteps)
	}
	for i, s := range p.Steps {
		if s.Bytes < 0 || s.Bytes > math.MaxInt64/maxSteps || s.MaxErrors < 0 || s.Tolerance < 0 || s.Tolerance > 100 || s.Bandwidth < 0 || s.Bandwidth > 1<<20 {
			return nil, fmt.Errorf("move %d of the plan has a number that cannot be", i+1)
		}
	}
	return &p, nil
}

// ID is what a plan is called by: the SHA-1 of its text.
func ID(text []byte) string {
	sum := sha1.Sum(text) //nolint:gosec // as above
	return hex.EncodeToString(sum[:])
}

// Sets puts volumes together between which replicas may move: those of a type, in the order of the types' names.
func Sets(volumes []Volume) [][]Volume {
	by := map[string][]Volume{}
	var types []string
	for _, v := range volumes {
		if by[v.StorageType] == nil {
			types = append(types, v.StorageType)
		}
		by[v.StorageType] = append(by[v.StorageType], v)
	}
	slices.Sort(types)
	var out [][]Volume
	for _, t := range types {
		weigh(by[t])
		out = append(out, by[t])
	}
	return out
}

// room is what a volume may hold.
func (v *Volume) room() int64 { return max(0, v.Capacity-v.Reserved) }

// out of the balance: there is nothing to move from it, nor to it.
func (v *Volume) out() bool {
	return v.Failed || v.Transient || v.ReadOnly || v.Skip || v.room() == 0
}

// weigh sets how far each volume of a set is below the share that all have in use, and returns that share.
func weigh(set []Volume) (ideal float64) {
	var used, room int64
	for i := range set {
		if v := &set[i]; !v.out() {
			used, room = used+v.Used, room+v.room()
		}
	}
	if room > 0 {
		ideal = float64(used) / float64(room)
	}
	for i := range set {
		v := &set[i]
		v.Density = 0
		if !v.out() {
			v.Density = math.Trunc((ideal-float64(v.Used)/float64(v.room()))*10000) / 10000
		}
	}
	return ideal
}

// Density is how far a datanode is from even volumes: the sum of the differences, DiskBalancerDataNode.getNodeDataDensity.
func Density(volumes []Volume) (sum float64) {
	for _, set := range Sets(volumes) {
		for _, v := range set {
			sum += math.Abs(v.Density)
		}
	}
	return sum
}

// Make plans moves until no volume is further from the share of its set than threshold percent. The largest moves come first.
func Make(volumes []Volume, threshold float64) []Step {
	var steps []Step
	for _, set := range Sets(volumes) {
		set = slices.DeleteFunc(slices.Clone(set), func(v Volume) bool { return v.out() })
		for len(set) > 1 && len(steps) < maxSteps {
			ideal := weigh(set)
			off := slices.ContainsFunc(set, func(v Volume) bool { return math.Abs(v.Density) > threshold/100 })
			order := func(a, b Volume) int { return cmp.Compare(a.Density, b.Density) }
			high, low := slices.MinFunc(set, order), slices.MaxFunc(set, order)
			bytes := min(int64(ideal*float64(low.room()))-low.Used, high.Used-int64(ideal*float64(high.room())))
			if !off || bytes <= 0 || high.UUID == low.UUID {
				break
			}
			steps = append(steps, Step{Class: stepClass, Source: high, Destination: low, Ideal: ideal, Bytes: bytes, Set: low.StorageType})
			for i := range set {
				switch set[i].UUID {
				case high.UUID:
					set[i].Used -= bytes
				case low.UUID:
					set[i].Used += bytes
				}
			}
		}
	}
	return steps
}

// Result is how far a plan is, DiskBalancerWorkStatus.Result.
type Result uint32

// The results.
const (
	NoPlan Result = iota
	UnderProgress
	Done
	Cancelled
)

func (r Result) String() string {
	names := []string{"NO_PLAN", "PLAN_UNDER_PROGRESS", "PLAN_DONE", "PLAN_CANCELLED"}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("Result(%d)", uint32(r))
}

// Work is how far the move from one volume to another is, DiskBalancerWorkEntry.
type Work struct {
	Source      string `json:"sourcePath"`
	Destination string `json:"destPath"`
	Item        Item   `json:"workItem"`
}

// Item is DiskBalancerWorkItem. Started is in milliseconds since 1970.
type Item struct {
	Started     int64  `json:"startTime,omitempty"`
	Seconds     int64  `json:"secondsElapsed,omitempty"`
	Bytes       int64  `json:"bytesToCopy,omitempty"`
	BytesCopied int64  `json:"bytesCopied,omitempty"`
	Errors      int64  `json:"errorCount,omitempty"`
	Message     string `json:"errMsg,omitempty"`
	Blocks      int64  `json:"blocksCopied,omitempty"`
	MaxErrors   int64  `json:"maxDiskErrors,omitempty"`
	Tolerance   int64  `json:"tolerancePercent,omitempty"`
	Bandwidth   int64  `json:"bandwidth,omitempty"`
}

// Status is how far a datanode is with a plan.
type Status struct {
	Result Result
	// ID and File are of the plan.
	ID, File string
	Work     []Work
}
