package signature

import (
	"errors"
	"net/url"
	"testing"
	"time"
)

func TestKnownVector(t *testing.T) {
	got := Sign("0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "hello.txt", Read, "user", "")
	if want := "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestExpiryIsCheckedLast(t *testing.T) {
	query := url.Values{"path": {"a"}, "signature_expiration": {"100"}, "signature": {"v1_wrong"}}
	if err := Check(query, "t", Read, time.Unix(101, 0)); !errors.Is(err, ErrInvalid) {
		t.Errorf("wrong and expired: %v", err)
	}
	query.Set("signature", Sign("t", "a", Read, "", "100"))
	if err := Check(query, "t", Read, time.Unix(101, 0)); !errors.Is(err, ErrExpired) {
		t.Errorf("expired: %v", err)
	}
	if err := Check(query, "t", Read, time.Unix(100, 0)); err != nil {
		t.Errorf("in its last second: %v", err)
	}
}

// FuzzCheck: only what Sign made for exactly these values passes.
func FuzzCheck(f *testing.F) {
	f.Add("token", "hello.txt", "user", "", "v1_x")
	f.Add("", "", "", "123", "")
	f.Add("t", "a:read", "b", "99999999999", "v1_AAAA")
	f.Fuzz(func(t *testing.T, token, path, user, expiration, forged string) {
		query := url.Values{"path": {path}, "username": {user}, "signature_expiration": {expiration}}
		right := Sign(token, path, Read, user, expiration)
		query.Set("signature", right)
		switch err := Check(query, token, Read, time.Unix(0, 0)); {
		case err == nil, errors.Is(err, ErrExpired):
		case errors.Is(err, ErrInvalid) && expiration != "": // not a number
		default:
			t.Errorf("own signature: %v", err)
		}
		if Check(query, token+"x", Read, time.Unix(0, 0)) == nil {
			t.Error("passes with another token")
		}
		if Check(query, token, Write, time.Unix(0, 0)) == nil {
			t.Error("passes for another operation")
		}
		if query.Set("signature", forged); forged != right && Check(query, token, Read, time.Unix(0, 0)) == nil {
			t.Errorf("forged %q passes", forged)
		}
	})
}
