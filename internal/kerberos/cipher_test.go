package kerberos

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The vectors of RFC 3961, appendix A.1.
func TestFold(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"012345", "be072631276b1955"},
		{"password", "78a07b6caf85fa"},
		{"Rough Consensus, and Running Code", "bb6ed30870b7f0e0"},
		{"password", "59e4a8ca7c0385c3c37b3f6d2000247cb6e6bd5b3e"},
		{"MASSACHVSETTS INSTITVTE OF TECHNOLOGY", "db3b0d8f0b061e603282b308a50841229ad798fab9540c1b"},
		{"Q", "518a54a2 15a8452a 518a54a2 15a8452a 518a54a2 15"},
		{"ba", "fb25d531ae8974499f52fd92ea9857c4ba24cf297e"},
		{"kerberos", "6b65726265726f73"},
		{"kerberos", "6b65726265726f737b9b5b2b93132b93"},
		{"kerberos", "8372c236344e5f1550cd0747e15d62ca7a5a3bcea4"},
	} {
		want := unhex(t, string(bytes.ReplaceAll([]byte(c.want), []byte(" "), nil)))
		if got := fold([]byte(c.in), len(want)); !bytes.Equal(got, want) {
			t.Errorf("fold(%q, %d) = %x, want %x", c.in, len(want), got, want)
		}
	}
}

// The vectors of RFC 3962, appendix B.
func TestCTS(t *testing.T) {
	k, err := newKey(17, []byte("chicken teriyaki"))
	if err != nil {
		t.Fatal(err)
	}
	block := blockOf(t, k.value)
	plain := "I would like the General Gau's Chicken, please, and wonton soup."
	for _, c := range []struct {
		size int
		want string
	}{
		{17, "c6353568f2bf8cb4d8a580362da7ff7f97"},
		{31, "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5"},
		{32, "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584"},
		{47, "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be7fcbcc98ebf5"},
		{48, "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5be7fcbcc98ebf5a8"},
		{64, "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a84807efe836ee89a526730dbc2f7bc8409dad8bbb96c4cdc03bc103e1a194bbd8"},
	} {
		data := []byte(plain[:c.size])
		encryptCTS(block, data)
		if want := unhex(t, c.want); !bytes.Equal(data, want) {
			t.Errorf("%d bytes: %x, want %x", c.size, data, want)
		}
		decryptCTS(block, data)
		if string(data) != plain[:c.size] {
			t.Errorf("%d bytes come back as %q", c.size, data)
		}
	}
}

// The vectors of RFC 8009, appendix A: keys, checksums, and decryption.
func TestSHA2(t *testing.T) {
	for _, c := range []struct {
		id                                     int32
		key, sum, encryption, integrity, check string
		plain                                  map[string]string
	}{
		{
			19, "3705d96080c17728a0e800eab6e0d23c", "b31a018a48f54776f403e9a396325dc3", "9b197dd1e8c5609d6e67c3e37c62c72e",
			"9fda0e56ab2d85e1569a688696c26a6c", "d78367186643d67b411cba9139fc1dee",
			map[string]string{
				"":                                 "ef85fb890bb8472f4dab20394dca781dad877eda39d50c870c0d5a0a8e48c718",
				"000102030405":                     "84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c",
				"000102030405060708090a0b0c0d0e0f": "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc295fb4852e7d83e1e7c48c37eebe6b0d3",
				"000102030405060708090a0b0c0d0e0f1011121314": "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c186b39a413c2f92ca9b8334a287ffcbfc",
			},
		},
		{
			20, "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52", "ef5718be86cc84963d8bbb5031e9f5c4ba41f28faf69e73d",
			"56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49", "69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f",
			"45ee791567eefca37f4ac1e0222de80d43c3bfa06699672a",
			map[string]string{
				"":                                 "41f53fa5bfe7026d91faf9be959195a058707273a96a40f0a01960621ac612748b9bbfbe7eb4ce3c",
				"000102030405":                     "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d69d10f2",
				"000102030405060708090a0b0c0d0e0f": "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
				"000102030405060708090a0b0c0d0e0f1011121314": "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
			},
		},
	} {
		k, err := newKey(c.id, unhex(t, c.key))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range []struct {
			kind byte
			size int
			want string
		}{{0x99, k.integer, c.sum}, {0xAA, k.key, c.encryption}, {0x55, k.integer, c.integrity}} {
			if got := k.derive(2, d.kind, d.size); hex.EncodeToString(got) != d.want {
				t.Errorf("%s: key %x is %x, want %s", k.name, d.kind, got, d.want)
			}
		}
		u := k.usage(2)
		if got := u.checksumOf(unhex(t, "000102030405060708090a0b0c0d0e0f1011121314")); hex.EncodeToString(got) != c.check {
			t.Errorf("%s: checksum %x, want %s", k.name, got, c.check)
		}
		for plain, sealed := range c.plain {
			if got, err := u.decrypt(unhex(t, sealed)); err != nil || hex.EncodeToString(got) != plain {
				t.Errorf("%s: decrypted %x, %v; want %s", k.name, got, err, plain)
			}
		}
	}
}

func TestSealedAndOpened(t *testing.T) {
	for _, e := range enctypes {
		k := key{enctype: &e}.randomKey()
		u := k.usage(22)
		for size := range 70 {
			plain := bytes.Repeat([]byte{byte(size)}, size)
			sealed := u.encrypt(nil, plain)
			if len(sealed) != size+u.overhead() {
				t.Fatalf("%s: %d bytes become %d", e.name, size, len(sealed))
			}
			if got, err := u.decrypt(bytes.Clone(sealed)); err != nil || !bytes.Equal(got, plain) {
				t.Fatalf("%s: %d bytes come back as %x, %v", e.name, size, got, err)
			}
			for _, i := range []int{0, len(sealed) / 2, len(sealed) - 1} {
				changed := bytes.Clone(sealed)
				changed[i] ^= 1
				if _, err := u.decrypt(changed); err == nil {
					t.Fatalf("%s: byte %d of %d was changed and nothing said", e.name, i, len(sealed))
				}
			}
		}
		if _, err := u.decrypt(make([]byte, u.overhead()-1)); err == nil {
			t.Errorf("%s: a message that is too short is taken", e.name)
		}
	}
}

func blockOf(t testing.TB, value []byte) cipher.Block {
	t.Helper()
	b, err := aes.NewCipher(value)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
