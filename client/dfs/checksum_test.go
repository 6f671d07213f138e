package dfs

import (
	"testing"

	"github.com/gohops/hops/internal/dtp"
)

// What a file is created with goes before the client's configuration, and that before what the server says.
func TestChecksumOptions(t *testing.T) {
	server := ServerDefaults{ChecksumType: dtp.CRC32C, BytesPerChecksum: 1024}
	for _, test := range []struct {
		config, file ChecksumOption
		want         dtp.Checksum
	}{
		{want: dtp.Checksum{Type: dtp.CRC32C, BytesPer: 1024}},
		{config: ChecksumOption{Type: "CRC32"}, want: dtp.Checksum{Type: dtp.CRC32, BytesPer: 1024}},
		{config: ChecksumOption{Type: "CRC32", BytesPer: 512}, file: ChecksumOption{Type: "NULL"}, want: dtp.Checksum{Type: dtp.Null, BytesPer: 512}},
		{config: ChecksumOption{BytesPer: 512}, file: ChecksumOption{BytesPer: 1}, want: dtp.Checksum{Type: dtp.CRC32C, BytesPer: 1}},
	} {
		c := &Client{config: Config{Checksum: test.config}}
		if got, err := c.checksum(server, test.file); err != nil || got != test.want {
			t.Errorf("%+v over %+v is %+v, %v", test.file, test.config, got, err)
		}
	}
	for _, bad := range []ChecksumOption{{Type: "MD5"}, {Type: "crc32"}, {BytesPer: -1}, {BytesPer: dtp.MaxChunk + 1}} {
		if _, err := New(Config{Namenodes: []string{"127.0.0.1:1"}, Checksum: bad}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	for _, test := range []struct {
		kind, per string
		good      bool
	}{{"CRC32", "4096", true}, {"NULL", "", true}, {"", "512", true}, {"CRC64", "", false}, {"", "0", false}, {"", "many", false}} {
		conf := &HadoopConf{Properties: map[string]string{"dfs.checksum.type": test.kind, "dfs.bytes-per-checksum": test.per}}
		if _, err := conf.config(); (err == nil) != test.good {
			t.Errorf("dfs.checksum.type %q, dfs.bytes-per-checksum %q: %v", test.kind, test.per, err)
		}
	}
}
