// Package jmx answers /jmx as Hadoop's JMXJsonServlet does, which monitoring tools read: a server's beans with their attributes,
// as JSON.
package jmx

import (
	"net/http"
	"strings"
)

// Bean is a thing that is watched.
type Bean struct {
	// Name is its object name, DOMAIN:KEY=VALUE,…
	Name string
	// Type is the class that Hadoop says it is of ("modelerType").
	Type       string
	Attributes Attributes
}

// Attribute is a figure or word of a bean. Value is a string, a bool, an int, int32 or int64, a float64, a []string or []int64, or
// Attributes.
type Attribute struct {
	Name  string
	Value any
}

// Attributes are a value with parts (Java's CompositeData).
type Attributes []Attribute

// maxQuery bounds the length of a query: it is matched against each bean's name.
const maxQuery = 1024

// Handler serves beans. `?qry=` selects by a pattern of object names, `?get=NAME::ATTRIBUTE` one attribute. What is not there is said
// with status 200, as Hadoop 3.4.3 does. beans is called at each request.
func Handler(beans func() []Bean) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf8")
		answer := func(members ...Attribute) {
			_, _ = w.Write(append(appendValue(nil, Attributes(members), 0), '\n')) // the client has gone
		}
		query := r.URL.Query()
		text, attribute := query.Get("qry"), ""
		if text == "" {
			text = "*:*"
		}
		if get, ok := query["get"]; ok {
			parts := strings.Split(get[0], "::")
			if len(parts) != 2 {
				answer(Attribute{"result", "ERROR"}, Attribute{"message", "query format is not as expected."})
				return
			}
			text, attribute = parts[0], parts[1]
		}
		p, ok := parsePattern(text)
		if !ok {
			w.WriteHeader(http.StatusBadRequest)
			answer(Attribute{"result", "ERROR"}, Attribute{"message", "the query is no object name: DOMAIN:KEY=VALUE,…, with * and ? for what does not matter"})
			return
		}
		list := []Attributes{}
		for _, b := range beans() {
			if !p.matches(b.Name) {
				continue
			}
			o := Attributes{{"name", b.Name}, {"modelerType", b.Type}}
			if attribute == "" {
				list = append(list, append(o, b.Attributes...))
				continue
			}
			found := false
			for _, a := range b.Attributes {
				if a.Name == attribute {
					o, found = append(o, a), true
				}
			}
			if !found { // as there, the answer ends here
				list = append(list, append(o, Attribute{"result", "ERROR"}, Attribute{"message", "No attribute with name " + attribute + " was found."}))
				break
			}
			list = append(list, o)
		}
		answer(Attribute{"beans", list})
	})
}

// pattern is an object name whose parts may have wildcards (javax.management.ObjectName).
type pattern struct {
	domain string
	keys   map[string]string
	more   bool // other keys do not matter
}

// parsePattern reads DOMAIN:KEY=VALUE,KEY=VALUE,* with * and ? in DOMAIN and values.
func parsePattern(text string) (pattern, bool) {
	domain, list, ok := strings.Cut(text, ":")
	if !ok || list == "" || len(text) > maxQuery {
		return pattern{}, false
	}
	p := pattern{domain: domain, keys: map[string]string{}}
	for part := range strings.SplitSeq(list, ",") {
		if part == "*" {
			p.more = true
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if _, twice := p.keys[key]; !ok || key == "" || twice {
			return pattern{}, false
		}
		p.keys[key] = value
	}
	return p, true
}

func (p pattern) matches(name string) bool {
	domain, list, _ := strings.Cut(name, ":")
	if !glob(p.domain, domain) {
		return false
	}
	found := 0
	for part := range strings.SplitSeq(list, ",") {
		key, value, _ := strings.Cut(part, "=")
		want, ok := p.keys[key]
		switch {
		case ok && glob(want, value):
			found++
		case ok || !p.more:
			return false
		}
	}
	return found == len(p.keys)
}

// glob matches a text with a pattern whose * stands for any text and ? for any byte. It takes no more than the product of both
// lengths.
func glob(pattern, text string) bool {
	p, t, star, mark := 0, 0, -1, 0
	for t < len(text) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, t
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == text[t]):
			p++
			t++
		case star >= 0:
			mark++
			p, t = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Pairs makes attributes of names and their values.
func Pairs(list ...any) Attributes {
	out := make(Attributes, 0, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		out = append(out, Attribute{list[i].(string), list[i+1]})
	}
	return out
}
