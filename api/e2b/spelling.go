package e2b

import (
	"strings"
	"unicode"
)

// spellings gives the names a field is accepted by: as the protocol writes it,
// and in the other of camelCase and snake_case.
func spellings(name string) []string {
	other := snakeCase(name)
	if other == name {
		other = camelCase(name)
	}
	if other == name {
		return []string{name}
	}
	return []string{name, other}
}

func snakeCase(s string) string {
	var b strings.Builder
	var previous rune
	for _, r := range s {
		if unicode.IsUpper(r) && previous != 0 && !unicode.IsUpper(previous) {
			b.WriteByte('_') // templateID: template_id
		}
		b.WriteRune(unicode.ToLower(r))
		previous = r
	}
	return b.String()
}

func camelCase(s string) string {
	parts := strings.Split(s, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// securityFields are the settings that limit what a sandbox may do or who may
// reach it; true: it is one of the network object's.
var securityFields = []struct {
	name      string
	ofNetwork bool
}{
	{"secure", false}, {"network", false}, {"allow_internet_access", false}, {"iam", false},
	{"allowOut", true}, {"denyOut", true}, {"allowPublicTraffic", true}, {"egressProxy", true},
	{"rules", true}, {"maskRequestHost", true}, {"allowIn", true}, {"denyIn", true},
}

// securityWords make an unknown name suspicious wherever they occur in it.
var securityWords = []string{
	"secur", "network", "internet", "egress", "ingress", "allow", "deny", "block", "firewall",
	"proxy", "public", "private", "traffic", "isolat", "restrict", "readonly",
}

// mayBeSecurity judges an unknown name: near is the security field it was
// probably meant to be, ofNetwork whether that belongs into the network object;
// risky that it speaks of security at all.
func mayBeSecurity(name string) (near string, ofNetwork, risky bool) {
	n := plain(name)
	for _, exact := range []bool{true, false} {
		for _, f := range securityFields {
			p := plain(f.name)
			// One slip in a short word, two in a long one; none in "iam".
			if n == p || !exact && distance(n, p) <= min(2, len(p)/5) {
				return f.name, f.ofNetwork, true
			}
		}
	}
	for _, w := range securityWords {
		if strings.Contains(n, w) {
			return "", false, true
		}
	}
	return "", false, false
}

// plain drops case and separators.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || unicode.IsSpace(r) {
			return -1
		}
		return unicode.ToLower(r)
	}, s)
}

// distance counts the insertions, deletions, replacements and swaps of
// neighbours between a and b; of long strings only that it is large.
func distance(a, b string) int {
	if d := len(a) - len(b); d > 3 || d < -3 {
		return 4
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
