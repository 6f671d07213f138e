package main

import (
	"encoding/binary"

	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

const clientProtocol = "org.apache.hadoop.hdfs.protocol.ClientProtocol"

// Hadoop IPC as an attacker writes it: no client in between that would keep to the rules.

// greeting is what an IPC connection begins with: magic, version 9, no authentication, and who calls.
func greeting(user string) []byte {
	b := append([]byte("hrpc"), 9, 0, 0)
	return append(b, frame(
		ipcHeader(-3),
		&hadooppb.IpcConnectionContextProto{UserInfo: &hadooppb.UserInformationProto{EffectiveUser: &user}, Protocol: new(string(clientProtocol))},
	)...)
}

func ipcHeader(call int32) *hadooppb.RpcRequestHeaderProto {
	return &hadooppb.RpcRequestHeaderProto{
		RpcKind: hadooppb.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(), RpcOp: hadooppb.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(),
		CallId: &call, ClientId: []byte("0123456789abcdef"), RetryCount: new(int32(-1)),
	}
}

// callFrame is one call, framed.
func callFrame(id int32, method string, request hrpc.Message) []byte {
	return frame(ipcHeader(id), callHeader(method), request)
}

func callHeader(method string) *hadooppb.RequestHeaderProto {
	return &hadooppb.RequestHeaderProto{
		MethodName: &method, DeclaringClassProtocolName: new(string(clientProtocol)), ClientProtocolVersion: new(uint64(1)),
	}
}

// frame puts messages, each with its length, behind the length of them all.
func frame(messages ...hrpc.Message) []byte {
	b := make([]byte, 4)
	for _, m := range messages {
		b = appendDelimited(b, m)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func appendDelimited(b []byte, m hrpc.Message) []byte {
	size := m.SizeVT()
	b = binary.AppendUvarint(b, uint64(size))
	at := len(b)
	b = append(b, make([]byte, size)...)
	if _, err := m.MarshalToSizedBufferVT(b[at:]); err != nil {
		panic(err) // a message that lacks a required field: a mistake of this program
	}
	return b
}

// rawFrame is a call whose request is bytes that need not be a message; announced is how much longer the frame says it is.
func rawFrame(id int32, method string, request []byte, announced int) []byte {
	b := make([]byte, 4)
	b = appendDelimited(b, ipcHeader(id))
	b = appendDelimited(b, callHeader(method))
	b = binary.AppendUvarint(b, uint64(len(request)+announced))
	b = append(b, request...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4+announced))
	return b
}
