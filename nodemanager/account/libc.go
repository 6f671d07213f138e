//go:build cgo && !osusergo

package account

// libc: os/user asks the C library, which knows all sources of users.
const libc = true
