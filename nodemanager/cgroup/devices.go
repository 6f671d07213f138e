package cgroup

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is a character device that processes of a group may open (Documentation/admin-guide/devices.txt of the kernel).
type Device struct {
	Major uint32 `json:"major"`
	// Minor is not looked at when All is set.
	Minor uint32 `json:"minor,omitempty"`
	All   bool   `json:"all,omitempty"`
}

// Everyday are the devices that every process has: null, zero, full, random, urandom, tty, ptmx and pseudo terminals.
func Everyday() []Device {
	return []Device{{Major: 1, Minor: 3}, {Major: 1, Minor: 5}, {Major: 1, Minor: 7}, {Major: 1, Minor: 8}, {Major: 1, Minor: 9},
		{Major: 5, Minor: 0}, {Major: 5, Minor: 2}, {Major: 136, All: true}}
}

// DeviceOf is the character device behind a path.
func DeviceOf(path string) (Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Device{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Device{}, fmt.Errorf("%s is no character device", path)
	}
	return Device{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}, nil
}

// limitV1 lets the processes of a group open the devices and no others, by the devices controller of version 1.
func limitV1(dir string, devices []Device) error {
	if err := write(dir, "devices.deny", "a"); err != nil {
		return fmt.Errorf("deny devices: %w", err)
	}
	for _, d := range devices {
		minor := strconv.FormatUint(uint64(d.Minor), 10)
		if d.All {
			minor = "*"
		}
		if err := write(dir, "devices.allow", fmt.Sprintf("c %d:%s rw", d.Major, minor)); err != nil {
			return fmt.Errorf("allow device %d:%s: %w", d.Major, minor, err)
		}
	}
	return nil
}

// limitV2 does it by a program of type BPF_PROG_TYPE_CGROUP_DEVICE, which belongs to the directory until that is removed.
func limitV2(dir string, devices []Device) error {
	program, err := loadDeviceProgram(devices)
	if err != nil {
		return err
	}
	defer unix.Close(program)
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	attach := struct{ target, program, kind, flags uint32 }{uint32(group.Fd()), uint32(program), unix.BPF_CGROUP_DEVICE, unix.BPF_F_ALLOW_MULTI}
	if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attach), unsafe.Sizeof(attach)); err != nil {
		return fmt.Errorf("attach the device program to %s: %w", dir, err)
	}
	return nil
}

// loadDeviceProgram hands a program to the kernel and returns its descriptor.
func loadDeviceProgram(devices []Device) (int, error) {
	code, license := deviceProgram(devices), []byte("Apache-2.0\x00")
	load := struct {
		kind, count   uint32
		code, license uint64
		_             [6]uint64 // log and version: none
	}{kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(code) / 8),
		code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0])))}
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&load), unsafe.Sizeof(load))
	runtime.KeepAlive(code)
	runtime.KeepAlive(license)
	if err != nil {
		return 0, fmt.Errorf("load the device program: %w", err)
	}
	return fd, nil
}

func bpf(command int, attributes unsafe.Pointer, size uintptr) (int, error) {
	for {
		fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EAGAIN, unix.EINTR: // the verifier was interrupted by a signal
		default:
			return 0, errno
		}
	}
}

// deviceProgram answers 1 for the devices and 0 for all others and for making device files. Its argument is struct
// bpf_cgroup_dev_ctx: access<<16|type, major, minor.
func deviceProgram(devices []Device) []byte {
	const (
		char, mknod    = 2, 1
		load           = 0x61 // dst = *(u32 *)(src + off)
		and, rsh       = 0x57, 0x77
		move, moveReg  = 0xb7, 0xbf
		equal, unequal = 0x15, 0x55 // skip off instructions if dst is, or is not, imm
		exit           = 0x95       // the answer is r0
	)
	var code []byte
	op := func(op, dst, src byte, off int16, imm int32) {
		code = append(code, op, src<<4|dst)
		code = binary.NativeEndian.AppendUint16(code, uint16(off))
		code = binary.NativeEndian.AppendUint32(code, uint32(imm))
	}
	op(load, 2, 1, 0, 0)
	op(moveReg, 3, 2, 0, 0)
	op(and, 2, 0, 0, 0xffff) // r2: type
	op(rsh, 3, 0, 0, 16)     // r3: access
	op(and, 3, 0, 0, mknod)
	op(load, 4, 1, 4, 0) // r4: major
	op(load, 5, 1, 8, 0) // r5: minor
	op(move, 0, 0, 0, 0)
	op(unequal, 2, 0, 1, char)
	op(equal, 3, 0, 1, 0)
	op(exit, 0, 0, 0, 0)
	for _, d := range devices {
		if d.All {
			op(unequal, 4, 0, 2, int32(d.Major))
		} else {
			op(unequal, 4, 0, 3, int32(d.Major))
			op(unequal, 5, 0, 2, int32(d.Minor))
		}
		op(move, 0, 0, 0, 1)
		op(exit, 0, 0, 0, 0)
	}
	op(exit, 0, 0, 0, 0)
	return code
}
