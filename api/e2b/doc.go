// Package e2b speaks E2B's control-plane REST dialect over a sandbox.Backend:
// the v1 routes (SDK 2.50 and older) and the v2 ones (2.51 and newer).
//
// The dialect ends here. A request is parsed into neutral types with the
// defaults of its route, the backend decides, and its answer or its error kind
// is put on the wire. What the backend cannot do (an optional interface it does
// not implement) answers 501 with the reason.
package e2b
