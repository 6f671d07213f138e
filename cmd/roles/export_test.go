package roles

// MakeDirectories is for tests that need a cluster.
var MakeDirectories = makeDirectories
