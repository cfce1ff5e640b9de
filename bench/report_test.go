package bench

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	err := WriteJSON(&b, []Result{
		{Name: "create_pool", Unit: "ms", Summary: Summary{N: 3, Min: 1, P50: 2, P95: 3, P99: 4, Max: 5}, Peer: &Peer{Name: "docker", P50: 200.5}},
		{Name: "rollback", Unit: "ms", Summary: Summary{N: 1, Min: 7, P50: 7, P95: 7, P99: 7, Max: 7}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	const shape = `[
		{"name":"create_pool","unit":"ms","n":3,"min":1,"p50":2,"p95":3,"p99":4,"max":5,"peer":{"name":"docker","p50":200.5}},
		{"name":"rollback","unit":"ms","n":1,"min":7,"p50":7,"p95":7,"p99":7,"max":7}
	]`
	if err := json.Unmarshal([]byte(shape), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s\nwant %s", b.String(), shape)
	}
}

func TestWriteJSONOfNothingIsAnArray(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, nil); err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(b.String()) != "[]" {
		t.Errorf("got %q", b.String())
	}
}

func TestWriteTable(t *testing.T) {
	var b bytes.Buffer
	err := WriteTable(&b, []Result{
		{Name: "exec_warm", Unit: "ms", Summary: Summary{N: 200, P50: 3.5}, Peer: &Peer{Name: "docker", P50: 55}},
		{Name: "upload", Unit: "MB/s", Summary: Summary{N: 5, P50: 12}},
		{Name: "guest_memory", Unit: "MB", Summary: Summary{N: 3, P50: 9}},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines:\n%s", len(lines), b.String())
	}
	for i, want := range []string{"budget", "3.50", "12.0", "9.00"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d lacks %q: %s", i, want, lines[i])
		}
	}
	for i, want := range []string{"✓", "✗"} {
		if !strings.Contains(lines[i+1], want) {
			t.Errorf("line %d lacks %q: %s", i+1, want, lines[i+1])
		}
	}
	if strings.ContainsAny(lines[3], "✓✗") {
		t.Errorf("a row without a budget is judged: %s", lines[3])
	}
}
