package kerberos

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Limits of rules.
const (
	maxRules     = 1000
	maxRulesText = 256 << 10
	maxPattern   = 4096
)

// Rules make the short names of principals, which are those of users (hadoop.security.auth_to_local, with the mechanism hadoop:
// a name that no rule takes is no user). The first that takes a name decides.
type Rules struct {
	realm string
	rules []rule
}

// rule is DEFAULT, or one of RULE:[parts:format](match)s/from/to/g with /L behind it.
type rule struct {
	text   string
	all    bool // DEFAULT
	parts  int
	format []piece
	match  *regexp.Regexp // of the whole of what format makes; nil: everything
	from   *regexp.Regexp
	to     string
	repeat bool
	lower  bool
}

// piece of a format: text, or the part of the name with a number, the realm being number 0.
type piece struct {
	text   string
	number int // -1: text
}

// DefaultRules take the first part of a principal of the realm.
func DefaultRules(realm string) *Rules {
	return &Rules{realm, []rule{{text: "DEFAULT", all: true}}}
}

// ruleSyntax is KerberosName's of Hadoop.
var ruleSyntax = regexp.MustCompile(`^\s*((DEFAULT)|(RULE:\[(\d*):([^\]]*)](\(([^)]*)\))?(s/([^/]*)/([^/]*)/(g)?)?))/?(L)?`)

// ParseRules reads rules, separated by blanks or ends of lines. DEFAULT takes the names of realm. No rules: DEFAULT.
func ParseRules(text, realm string) (*Rules, error) {
	if len(text) > maxRulesText {
		return nil, fmt.Errorf("rules of %d bytes are too long, %d are allowed", len(text), maxRulesText)
	}
	r := &Rules{realm: realm}
	for rest := strings.TrimSpace(text); rest != ""; {
		m := ruleSyntax.FindStringSubmatch(rest)
		if m == nil {
			return nil, fmt.Errorf("%.200q is no rule: DEFAULT, or RULE:[n:string](regexp)s/pattern/replacement/g with /L for small letters", rest)
		}
		if len(r.rules) == maxRules {
			return nil, fmt.Errorf("there are more than %d rules", maxRules)
		}
		one, err := newRule(m)
		if err != nil {
			return nil, fmt.Errorf("rule %.200q: %w", strings.TrimSpace(m[0]), err)
		}
		r.rules = append(r.rules, one)
		rest = strings.TrimSpace(rest[len(m[0]):])
	}
	if len(r.rules) == 0 {
		return DefaultRules(realm), nil
	}
	return r, nil
}

func newRule(m []string) (rule, error) {
	r := rule{text: strings.TrimSpace(m[0]), all: m[2] != "", repeat: m[11] != "", lower: m[12] != "" && m[2] == ""}
	if r.all {
		return r, nil
	}
	var err error
	if r.parts, err = strconv.Atoi(m[4]); err != nil || r.parts > maxComponents {
		return r, fmt.Errorf("%q is no number of parts", m[4])
	}
	if r.format, err = parseFormat(m[5], r.parts); err != nil {
		return r, err
	}
	if m[6] != "" {
		if r.match, err = pattern("^(?:" + m[7] + ")$"); err != nil {
			return r, err
		}
	}
	if m[8] != "" {
		if r.from, err = pattern(m[9]); err != nil {
			return r, err
		}
		r.to, err = replacement(m[10], r.from.NumSubexp())
	}
	return r, err
}

func pattern(text string) (*regexp.Regexp, error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("a pattern of %d bytes is too long, %d are allowed", len(text), maxPattern)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("%w (Go's regular expressions: without lookaround and backreferences)", err)
	}
	return re, nil
}

// parseFormat reads text with $0 for the realm and $1 … for the parts of the name.
func parseFormat(text string, parts int) ([]piece, error) {
	var out []piece
	for text != "" {
		plain, rest, found := strings.Cut(text, "$")
		if plain != "" {
			out = append(out, piece{plain, -1})
		}
		if !found {
			break
		}
		digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil || n > parts {
			return nil, fmt.Errorf("$%s is none of $0 to $%d", digits, parts)
		}
		out = append(out, piece{"", n})
		text = rest[len(digits):]
	}
	return out, nil
}

// replacement turns Java's template of a replacement into Go's: $1 takes as many digits as there are groups, a backslash makes
// the next character plain.
func replacement(text string, groups int) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			if text[i] == '$' {
				b.WriteByte('$')
			}
			b.WriteByte(text[i])
		case c == '\\':
			return "", fmt.Errorf("the replacement %q ends with a backslash", text)
		case c == '$':
			n, digits := 0, 0
			for i+1 < len(text) && text[i+1] >= '0' && text[i+1] <= '9' {
				next := n*10 + int(text[i+1]-'0')
				if digits > 0 && next > groups {
					break
				}
				n = next
				digits++
				i++
			}
			if digits == 0 || n > groups {
				return "", fmt.Errorf("the replacement %q names a group that the pattern does not have", text)
			}
			fmt.Fprintf(&b, "${%d}", n)
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

// ShortName is the name of the user that a principal is. The error says that no rule takes it.
func (r *Rules) ShortName(p Principal) (string, error) {
	if err := p.check(); err != nil {
		return "", err
	}
	for _, one := range r.rules {
		name, ok := one.apply(p, r.realm)
		if !ok {
			continue
		}
		if name == "" || strings.ContainsAny(name, "/@") {
			return "", fmt.Errorf("Non-simple name %q after auth_to_local rule %s", name, one.text)
		}
		if one.lower {
			name = strings.ToLower(name)
		}
		return name, nil
	}
	return "", fmt.Errorf("No rules applied to %s: see hadoop.security.auth_to_local", p)
}

func (r *rule) apply(p Principal, realm string) (string, bool) {
	if r.all {
		// As in Hadoop: names of one part or two.
		return p.Service(), p.Realm == realm && len(p.Components) <= 2
	}
	if len(p.Components) != r.parts {
		return "", false
	}
	var b strings.Builder
	for _, piece := range r.format {
		switch {
		case piece.number < 0:
			b.WriteString(piece.text)
		case piece.number == 0:
			b.WriteString(p.Realm)
		default:
			b.WriteString(p.Components[piece.number-1])
		}
	}
	base := b.String()
	switch {
	case r.match != nil && !r.match.MatchString(base):
		return "", false
	case r.from == nil:
		return base, true
	case r.repeat:
		return r.from.ReplaceAllString(base, r.to), true
	}
	at := r.from.FindStringSubmatchIndex(base)
	if at == nil {
		return base, true
	}
	return base[:at[0]] + string(r.from.ExpandString(nil, r.to, base, at)) + base[at[1]:], true
}
