package roles

// For tests that need a cluster.
var (
	MakeDirectories   = makeDirectories
	DirectoriesConfig = directoriesConfig
)
