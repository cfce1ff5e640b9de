package journal

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func open(t *testing.T, path string) *Journal {
	t.Helper()
	j, err := Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func TestSandboxesSurviveReopen(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "node.db")
	j := open(t, path)
	put := func(id, state string) {
		t.Helper()
		if err := j.Do(ctx, func(tx Tx) error { return tx.PutSandbox(id, state, map[string]string{"s": state}) }); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "creating")
	put("a", "running")
	put("b", "paused")
	if err := j.Do(ctx, func(tx Tx) error { return tx.DeleteSandbox("b") }); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = open(t, path)
	got := map[string]string{}
	if err := j.Sandboxes(ctx, func(id string, doc []byte) error { got[id] = string(doc); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got["a"] != `{"s":"running"}` {
		t.Fatalf("after reopen: %v", got)
	}
}

func TestFailedTransactionLeavesNothing(t *testing.T) {
	ctx := context.Background()
	j := open(t, filepath.Join(t.TempDir(), "node.db"))
	boom := errors.New("boom")
	err := j.Do(ctx, func(tx Tx) error {
		if err := tx.PutSandbox("a", "running", 1); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Fatalf("got %v", err)
	}
	if err := j.Sandboxes(ctx, func(id string, _ []byte) error { t.Fatalf("found %s", id); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestNamesMoveOnlyWhenAsked(t *testing.T) {
	ctx := context.Background()
	j := open(t, filepath.Join(t.TempDir(), "node.db"))
	err := j.Do(ctx, func(tx Tx) error {
		return errors.Join(tx.PutTemplate("t1", false, "", time.Now(), 1), tx.PutTemplate("t2", false, "", time.Now(), 2), tx.Name("base", "t1", false))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Do(ctx, func(tx Tx) error { return tx.Name("base", "t2", false) }); !errors.Is(err, ErrNameTaken) {
		t.Fatalf("got %v, want ErrNameTaken", err)
	}
	if err := j.Do(ctx, func(tx Tx) error { return tx.Name("base", "t2", true) }); err != nil {
		t.Fatal(err)
	}
	if err := j.Do(ctx, func(tx Tx) error { return tx.DeleteTemplate("t2") }); err != nil {
		t.Fatal(err)
	}
	if err := j.Names(ctx, func(n, id string) error { t.Fatalf("name %s still points to %s", n, id); return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "node.db")
	j := open(t, path)
	if _, err := j.db.ExecContext(ctx, "PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	j.Close()
	if _, err := Open(ctx, path); err == nil {
		t.Fatal("a newer journal was opened")
	}
}

func TestEventsPage(t *testing.T) {
	ctx := context.Background()
	j := open(t, filepath.Join(t.TempDir(), "node.db"))
	for _, k := range []string{"created", "paused", "resumed"} {
		if err := j.Do(ctx, func(tx Tx) error {
			_, err := tx.AddEvent("a", time.Now(), k, "m", map[string]string{"k": "v"})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	es, err := j.Events(ctx, "a", 1, 10)
	if err != nil || len(es) != 2 || es[0].Kind != "paused" || es[1].Fields["k"] != "v" {
		t.Fatalf("events %v, %v", es, err)
	}
}
