package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/sandbox"
)

func TestMatch(t *testing.T) {
	gw := gateway.New(gateway.Options{Router: newNode(), Domains: []string{"Boxes.example:443"}})
	for _, c := range []struct {
		host, id, port string
		wantID         string
		wantPort       int
		bad            string // part of the error
	}{
		// by host label
		{host: "3000-" + boxID + ".boxes.test", wantID: boxID, wantPort: 3000},
		{host: "3000-" + boxID + ".localhost:7070", wantID: boxID, wantPort: 3000},
		{host: "3000-" + boxID + "-holdfast.boxes.test", wantID: boxID, wantPort: 3000},
		{host: "3000-" + strings.ToUpper(boxID) + ".Boxes.Test.", wantID: boxID, wantPort: 3000},
		{host: "65535-" + boxID + ".a", wantID: boxID, wantPort: 65535},
		{host: "0-" + boxID + ".a", bad: "Invalid host"},
		{host: "65536-" + boxID + ".a", bad: "Invalid host"},
		{host: "http-" + boxID + ".a", bad: "Invalid host"},
		{host: "-1-" + boxID + ".a"},
		{host: "3000-" + boxID},       // no domain
		{host: "3000-" + boxID + "."}, // no domain
		{host: boxID + ".boxes.test"},
		{host: "10-0-0-1.provider.test"}, // a machine's name
		{host: "3000-i123.boxes.test"},   // no id
		{host: "api.boxes.test"},
		{host: ""},
		// the label wins over headers
		{host: "3000-" + boxID + ".localhost", id: otherID, port: "1", wantID: boxID, wantPort: 3000},

		// by headers
		{host: "localhost:7070", id: boxID, port: "8080", wantID: boxID, wantPort: 8080},
		{host: "127.0.0.1", id: boxID, port: "8080", wantID: boxID, wantPort: 8080},
		{host: "[::1]:7070", id: boxID, port: "8080", wantID: boxID, wantPort: 8080},
		{host: "sandbox.any.test", id: boxID, port: "8080", wantID: boxID, wantPort: 8080},
		{host: "boxes.example:7070", id: boxID, port: "8080", wantID: boxID, wantPort: 8080},
		{host: "localhost", id: boxID + "-holdfast", port: "8080", wantID: boxID, wantPort: 8080},
		{host: "localhost", id: boxID, port: "", bad: "E2b-Sandbox-Port"},
		{host: "localhost", id: boxID, port: "99999", bad: "E2b-Sandbox-Port"},
		{host: "evil.example", id: boxID, port: "8080", bad: "not on \"evil.example\""},
		{host: "x.boxes.example", id: boxID, port: "8080", bad: "not on"},
		{host: "localhost", id: "", port: "8080"},
	} {
		t.Run(c.host+"|"+c.id+"|"+c.port, func(t *testing.T) {
			r := &http.Request{Host: c.host, Header: http.Header{}}
			r.Header.Set("E2b-Sandbox-Id", c.id)
			r.Header.Set("E2b-Sandbox-Port", c.port)
			id, port, ok, err := gw.Match(r)
			if c.bad != "" {
				if !ok || err == nil || !strings.Contains(err.Error(), c.bad) {
					t.Fatalf("got %v %v, want an error with %q", ok, err, c.bad)
				}
				return
			}
			if err != nil || ok != (c.wantID != "") || id != c.wantID || port != c.wantPort {
				t.Fatalf("got %q %d %v %v", id, port, ok, err)
			}
		})
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("3000-"+boxID+".localhost:7070", "", "")
	f.Add("localhost", boxID, "49983")
	f.Add("[::1", "-", "-1")
	gw := gateway.New(gateway.Options{Router: newNode()})
	f.Fuzz(func(t *testing.T, host, id, port string) {
		r := &http.Request{Host: host, Header: http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {port}}}
		gotID, gotPort, ok, err := gw.Match(r)
		switch {
		case err != nil && !ok:
			t.Fatalf("%q: an error about a request that is for no sandbox", host)
		case ok && err == nil && (gotPort < 1 || gotPort > 65535):
			t.Fatalf("%q %q: port %d", host, port, gotPort)
		case ok && err == nil && id == "" && !sandbox.ValidID(gotID):
			t.Fatalf("%q: id %q", host, gotID)
		case ok && err == nil && strings.ContainsAny(gotID, "-"):
			t.Fatalf("%q %q: id %q", host, id, gotID)
		}
	})
}
