package shell

import (
	"fmt"
	"slices"
	"strings"
)

// optionHelp explains the options of the verbs, by verb; those of several verbs are under "".
var optionHelp = map[string]map[string]string{
	"": {
		"R":         "also everything below directories",
		"h":         "sizes for people: 64.0 M in place of 67108864",
		"f":         "replace files that are there already",
		"p":         "keep times, owner, group and mode",
		"l":         "accepted for Hadoop's sake: blocks are written as always",
		"d":         "write under the final name at once, without NAME._COPYING_",
		"t":         "how many files are copied at a time; default 8",
		"q":         "how many more files may wait for their turn; default 1024",
		"o":         "json: one JSON object per line, for programs",
		"x":         "leave snapshots out",
		"v":         "a line with the names of the columns first",
		"ignoreCrc": "accepted for Hadoop's sake: what is read is always checked",
		"ignorecrc": "as -ignoreCrc",
		"crc":       "write a checksum file .NAME.crc beside each file",
	},
	"ls": {
		"C": "paths alone, one on a line", "d": "directories themselves, not what is in them", "q": "? in place of signs that do not print",
		"t": "newest first", "S": "largest first", "r": "the other way round", "u": "the time of the last read in place of the last change",
		"e": "with the erasure coding policy",
	},
	"appendToFile": {"n": "begin a new block"},
	"count":        {"q": "quotas first, and what is left of them", "u": "quotas and what is used of them, alone", "t": "with -q or -u: quotas of storage types, as DISK,SSD", "e": "with the erasure coding policy", "s": "with what snapshots hold"},
	"cp":           {"p": "keep times, owner and mode, or what the letters name: t(imes), o(wner), p(ermission), a(ccess control list), x(attributes)"},
	"du":           {"s": "one sum for each path", "v": "a line with the names of the columns first"},
	"checksum":     {"v": "with the block size"},
	"expunge":      {"immediate": "everything, however young it is", "fs": "the filesystem whose trash is meant"},
	"getfattr":     {"R": "also of everything below", "d": "all attributes with their values", "n": "the attribute of this name", "e": "how values are shown: text, hex or base64"},
	"getmerge":     {"nl": "a newline after each file", "skip-empty-file": "none after an empty one"},
	"mkdir":        {"p": "parents too, and no error when it is there"},
	"pin":          {"n": "on so many datanodes; default: as the pool says", "pool": "the pool; default: default", "w": "wait until all of it is in memory"},
	"unpin":        {"pool": "directives of this pool alone"},
	"rm":           {"f": "no error when it is not there", "r": "directories with everything below", "R": "as -r", "skipTrash": "for ever: do not move it to the trash", "safely": "ask before a directory with more than 100 entries"},
	"rmdir":        {"-ignore-fail-on-non-empty": "leave directories that are not empty, without an error"},
	"setfacl":      {"R": "also everything below", "b": "remove all entries beside the mode", "k": "remove the default entries", "m": "add or change entries", "x": "remove entries", "-set": "replace all entries"},
	"setfattr":     {"n": "the attribute's name", "v": "its value: text, 0x… or 0s…", "x": "remove the attribute of this name"},
	"setrep":       {"R": "accepted for Hadoop's sake: directories are always gone down", "w": "wait until all copies are there"},
	"tail":         {"f": "go on as the file grows", "s": "milliseconds between two looks; default 5000"},
	"test":         {"d": "it is a directory", "e": "it is there", "f": "it is a file", "s": "it is not empty", "w": "it may be written", "r": "it may be read", "z": "it is empty"},
	"text":         {},
	"touch":        {"a": "the time of the last read alone", "m": "the time of the last change alone", "c": "do not make it", "t": "this time, as 20260131:235959, in place of now"},
	"truncate":     {"w": "wait until the last block is cut"},
	"chgrp":        {},
	"chmod":        {},
	"chown":        {},
	"watch":        {"from": "begin behind this position, as lines show it; 0: at the oldest change that is kept; default: with what changes from now on", "n": "end after so many changes"},
	"find":         {"L": "accepted for Hadoop's sake: there are no links", "H": "as -L"},
	"moveToLocal":  {"crc": "accepted for Hadoop's sake"},
}

// explain prints a line for each option of a verb.
func (s *Shell) explain(name string, v verb) {
	options := slices.Concat(v.flags, v.values)
	if name == "cp" {
		options = append(options, "p")
	}
	if slices.Contains(listed, name) {
		options = append(options, "o")
	}
	slices.SortFunc(options, func(a, b string) int { return strings.Compare(strings.ToLower(a)+a, strings.ToLower(b)+b) })
	for _, o := range options {
		shown := "-" + o
		if slices.Contains(v.values, o) || o == "o" {
			shown += " VALUE"
		}
		s.printf("  %s %s\n", fmt.Sprintf("%-16s", shown), optionText(name, o))
	}
	if name == "find" {
		for _, w := range findWords {
			s.printf("  %-18s %s\n", w[0], w[1])
		}
		s.printf("  What comes from the index may stand without a path: it is looked everywhere then. The namenode has to have one (namenode.search).\n")
	}
}

func optionText(verb, option string) string {
	if text, ok := optionHelp[verb][option]; ok {
		return text
	}
	return optionHelp[""][option]
}

// Options lists the options of a verb, with their dash, for completion.
func Options(name string) []string {
	v := verbs[strings.TrimPrefix(name, "-")]
	var all []string
	for _, o := range slices.Concat(v.flags, v.values) {
		all = append(all, "-"+o)
	}
	if strings.TrimPrefix(name, "-") == "find" {
		all = append(all, findOptions()...)
	}
	return all
}
