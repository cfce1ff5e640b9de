package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

// refusal is an answer of the gateway's own, in E2B's shape.
type refusal struct {
	status  int
	id      string
	port    int // 0: not about a port
	message string
}

type refusalBody struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// notFound is also the answer for a paused sandbox that traffic does not wake.
func notFound(id string) *refusal {
	return &refusal{status: http.StatusBadGateway, id: id, message: "The sandbox was not found"}
}

// routeError says why there is no way to a sandbox.
func (g *Gateway) routeError(id string, err error) *refusal {
	no := &refusal{id: id, message: err.Error()}
	switch sandbox.KindOf(err) {
	case sandbox.NotFound, sandbox.Terminal, sandbox.InvalidRequest:
		return notFound(id)
	case sandbox.Conflict:
		no.status = http.StatusConflict
	case sandbox.Capacity:
		no.status = http.StatusServiceUnavailable
	case sandbox.Timeout:
		no.status = http.StatusGatewayTimeout
	default:
		no.status = http.StatusBadGateway
	}
	if errors.Is(err, context.Canceled) {
		return no // the client left
	}
	g.log.Warn("no way to sandbox", "sandbox", id, "status", no.status, "error", err)
	return no
}

func (g *Gateway) refuse(w http.ResponseWriter, r *http.Request, no refusal) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if r.Header.Get("Origin") != "" {
		h.Set("Access-Control-Allow-Origin", "*")
	}
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.WriteHeader(no.status)
		_ = page.Execute(w, struct {
			Title, Message, ID string
			Status, Port       int
		}{http.StatusText(no.status), no.message, no.id, no.status, no.port})
		return
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(no.status)
	_ = json.NewEncoder(w).Encode(refusalBody{SandboxID: no.id, Message: no.message, Port: no.port, Code: no.status})
}

var page = template.Must(template.New("refusal").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Status}} {{.Title}}</title>
<style>
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:18vh auto 0;padding:0 1.5rem}
h1{font-size:1.35rem;margin:0 0 .75rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1rem;margin:1.5rem 0;opacity:.75}
dd{margin:0;font-family:ui-monospace,monospace;overflow-wrap:anywhere}
</style></head><body>
<h1>{{.Message}}</h1>
{{if eq .Status 502}}{{if .Port}}<p>Start a server on port {{.Port}} in the sandbox, then reload this page.</p>
{{else}}<p>It may have ended, or be paused and not set to wake on traffic.</p>{{end}}{{end}}
<dl><dt>Sandbox</dt><dd>{{.ID}}</dd>{{if .Port}}<dt>Port</dt><dd>{{.Port}}</dd>{{end}}<dt>Status</dt><dd>{{.Status}} {{.Title}}</dd></dl>
</body></html>
`))
