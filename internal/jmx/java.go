package jmx

import (
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"time"
)

// Started is when this process was.
var Started = time.Now()

// Process are the beans of the process itself that Java has under the same names, as far as they have a meaning in a program of Go:
// its heap, since when it runs, its goroutines in place of threads.
func Process(version string) []Bean {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/gc/gomemlimit:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) int64 { return int64(min(samples[i].Value.Uint64(), 1<<63-1)) }
	used := value(0)
	heap := used + value(2) + value(3)
	rest := max(value(4)-value(1)-heap, 0)
	most := value(5)
	if most == 1<<63-1 { // there is no limit
		most = -1
	}
	host, _ := os.Hostname() // without one the name has none
	return []Bean{
		{"java.lang:type=Memory", "sun.management.MemoryImpl", []Attribute{
			{"Verbose", false},
			{"HeapMemoryUsage", Attributes{{"committed", heap}, {"init", int64(0)}, {"max", most}, {"used", used}}},
			{"NonHeapMemoryUsage", Attributes{{"committed", rest}, {"init", int64(0)}, {"max", int64(-1)}, {"used", rest}}},
			{"ObjectName", "java.lang:type=Memory"},
		}},
		{"java.lang:type=Runtime", "sun.management.RuntimeImpl", []Attribute{
			{"Name", strconv.Itoa(os.Getpid()) + "@" + host},
			{"Pid", int64(os.Getpid())},
			{"StartTime", Started.UnixMilli()},
			{"Uptime", time.Since(Started).Milliseconds()},
			{"VmName", "Go"},
			{"VmVendor", "hops " + version},
			{"VmVersion", runtime.Version()},
			{"ObjectName", "java.lang:type=Runtime"},
		}},
		{"java.lang:type=Threading", "com.sun.management.internal.HotSpotThreadImpl", []Attribute{
			{"ThreadCount", runtime.NumGoroutine()},
			{"ObjectName", "java.lang:type=Threading"},
		}},
		{"java.lang:type=OperatingSystem", "com.sun.management.internal.OperatingSystemImpl", []Attribute{
			{"AvailableProcessors", runtime.NumCPU()},
			{"Name", runtime.GOOS},
			{"Arch", runtime.GOARCH},
			{"ObjectName", "java.lang:type=OperatingSystem"},
		}},
	}
}
