package resourcemanager

import "github.com/gohops/hops/metadata"

// Credential is a delegation token of the filesystem by which the containers of an application are known there as its user.
type Credential struct {
	Application ApplicationID
	// Number orders an application's tokens: containers are given the last one. Those before it stay good for programs that have
	// read them.
	Number int64
	// Sealed is the token, which only who has the cluster's secret opens.
	Sealed []byte
	// Got, Max, Renewed and Expires are by the resource manager's clock: when it was got, when it is over whoever renews it, when it
	// was renewed last and until when it is good. The last two are 0 until it is renewed for the first time.
	Got, Max, Renewed, Expires metadata.Time
}
