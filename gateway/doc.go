// Package gateway is the data-plane entry: it finds out which port of which
// sandbox a request is for, wakes the sandbox if its lifecycle says so, checks
// what may pass, and proxies. Bodies are never held back, in neither direction;
// there is no limit to their size nor to how long a stream lives.
//
// What it keeps per sandbox is connections. They belong to one generation of
// the sandbox's process: when that was replaced, or Disconnect says it is gone,
// all of them are closed, so that no client waits on a process that is no more.
package gateway
