//go:build !cgo || osusergo

package account

// libc: os/user reads /etc/passwd and /etc/group only.
const libc = false
