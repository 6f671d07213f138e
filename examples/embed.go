// Package examples carries the example programs and their data, so that `hops demo` needs no files beside the binary.
package examples

import _ "embed"

// Digits is digits.py, a training function in plain Python.
//
//go:embed digits.py
var Digits []byte

// DigitsData is the UCI optical digits set, CSV compressed with gzip; data/README.md has source and licence.
//
//go:embed data/digits.csv.gz
var DigitsData []byte
