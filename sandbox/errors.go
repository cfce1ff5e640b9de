package sandbox

import (
	"context"
	"errors"
	"fmt"
)

// Kind classifies an error once; dialects map kinds to their wire.
type Kind string

// The kinds.
const (
	NotFound       Kind = "not_found"
	Terminal       Kind = "terminal" // it existed and is gone for good
	Authentication Kind = "authentication"
	InvalidRequest Kind = "invalid_request"
	Unsupported    Kind = "unsupported"
	Conflict       Kind = "conflict"
	Capacity       Kind = "capacity"
	Timeout        Kind = "timeout"
	Unavailable    Kind = "unavailable"
	Internal       Kind = "internal"
)

// Error names the thing, the reason and the next step.
type Error struct {
	Kind   Kind
	Thing  string // e.g. `sandbox "i…"`
	Reason string // e.g. "is already paused"
	Next   string // e.g. "resume it first"; may be ""
	Err    error  // cause, may be nil
}

// Error gives "thing: reason; next: cause".
func (e *Error) Error() string {
	s := e.Thing
	if e.Reason != "" {
		s += " " + e.Reason
	}
	if e.Next != "" {
		s += "; " + e.Next
	}
	//nolint:errorlint // only the direct cause has its text in the reason
	if _, said := e.Err.(quietError); e.Err != nil && !said {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is lets errors.Is(err, &Error{Kind: NotFound}) match by kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Kind == e.Kind && t.Thing == "" && t.Reason == ""
}

// Errorf makes an Error of the kind; the reason is formatted, %w keeps a cause.
func Errorf(kind Kind, thing, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Thing: thing, Reason: err.Error(), Err: quiet(errors.Unwrap(err))}
}

// WithNext adds the next step.
func (e *Error) WithNext(format string, args ...any) *Error {
	c := *e
	c.Next = fmt.Sprintf(format, args...)
	return &c
}

// quietError keeps a cause in the chain whose text is already in the reason.
type quietError struct{ error }

func quiet(err error) error {
	if err == nil {
		return nil
	}
	return quietError{err}
}
func (q quietError) Unwrap() error { return q.error }

// KindOf gives the kind of the outermost classified error; context errors are
// Timeout, anything else Internal. KindOf(nil) is "".
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Timeout
	}
	return Internal
}

// IsKind tells whether err is of the kind.
func IsKind(err error, k Kind) bool { return KindOf(err) == k }
