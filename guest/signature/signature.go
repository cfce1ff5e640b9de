// Package signature makes and checks E2B's signed file URLs: with one, a browser
// may read or write one path without holding the access token.
package signature

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/url"
	"strconv"
	"time"
)

// Operations that a signature can allow.
const (
	Read  = "read"
	Write = "write"
)

// What can be wrong with a signature; the texts are E2B's.
var (
	ErrMissing = errors.New("missing signature query parameter")
	ErrInvalid = errors.New("invalid signature")
	ErrExpired = errors.New("signature is already expired")
)

// Sign allows operation on path for user ("" is the default user) with a
// sandbox's token. expiration is in unix seconds as it stands in the URL, "" for none.
func Sign(token, path, operation, user, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// Check verifies the query of a request for operation. Whether it has expired is
// told only about a signature that is otherwise right.
func Check(query url.Values, token, operation string, now time.Time) error {
	got := query.Get("signature")
	if got == "" {
		return ErrMissing
	}
	expiration := query.Get("signature_expiration")
	want := Sign(token, query.Get("path"), operation, query.Get("username"), expiration)
	if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 {
		return ErrInvalid
	}
	if expiration == "" {
		return nil
	}
	unix, err := strconv.ParseInt(expiration, 10, 64)
	if err != nil {
		return ErrInvalid
	}
	if now.Unix() > unix {
		return ErrExpired
	}
	return nil
}
