// Package journal is a node's durable memory: its sandboxes, templates, events
// and a few facts about itself, in one SQLite file. It stores documents and does
// not interpret them; the node decides what a change means.
//
// Every write is on stable storage when the call returns (WAL, synchronous=FULL).
package journal

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed schema.sql
var schemaV1 string

// migrations[i] takes the schema from version i to i+1.
var migrations = []string{schemaV1}

// ErrNotFound: no such row.
var ErrNotFound = errors.New("not in the journal")

// ErrNameTaken: the template name points to another template.
var ErrNameTaken = errors.New("name is taken")

// Journal is safe for concurrent use.
type Journal struct{ db *sql.DB }

// Open opens or creates the journal at path and brings its schema up to date.
// A journal of a newer Holdfast is refused.
func Open(ctx context.Context, path string) (*Journal, error) {
	dsn := "file:" + path + "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=busy_timeout(10000)&_txlock=immediate"
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	// One writer at a time is what SQLite does anyway; one connection makes
	// waiting a Go queue instead of a busy loop.
	db.SetMaxOpenConns(1)
	j := &Journal{db: db}
	if err := j.migrate(ctx); err != nil {
		db.Close()
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	return j, nil
}

func (j *Journal) migrate(ctx context.Context) error {
	return j.tx(ctx, func(tx *sql.Tx) error {
		var v int
		if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err != nil {
			return err
		}
		if v > len(migrations) {
			return fmt.Errorf("schema version %d is newer than this binary's %d; use the newer holdfast", v, len(migrations))
		}
		for ; v < len(migrations); v++ {
			if _, err := tx.ExecContext(ctx, migrations[v]); err != nil {
				return fmt.Errorf("migration %d: %w", v+1, err)
			}
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", len(migrations)))
		return err
	})
}

// DB gives the handle for neighbours that keep a table of their own (API keys).
func (j *Journal) DB() *sql.DB { return j.db }

// Close closes the file.
func (j *Journal) Close() error { return j.db.Close() }

// Tx is a set of changes that become durable together or not at all.
type Tx struct {
	ctx context.Context
	tx  *sql.Tx
}

// Do runs f in one transaction.
func (j *Journal) Do(ctx context.Context, f func(Tx) error) error {
	return j.tx(ctx, func(tx *sql.Tx) error { return f(Tx{ctx, tx}) })
}

func (j *Journal) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := j.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// PutSandbox writes a sandbox's document.
func (t Tx) PutSandbox(id, state string, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = t.tx.ExecContext(t.ctx, `INSERT INTO sandboxes (id, state, doc, updated_at) VALUES (?,?,?,?)
		ON CONFLICT (id) DO UPDATE SET state=excluded.state, doc=excluded.doc, updated_at=excluded.updated_at`,
		id, state, string(b), time.Now().UnixMicro())
	return err
}

// DeleteSandbox removes a sandbox; absent is fine.
func (t Tx) DeleteSandbox(id string) error {
	_, err := t.tx.ExecContext(t.ctx, "DELETE FROM sandboxes WHERE id=?", id)
	return err
}

// PutTemplate writes a template's document; its names are kept.
func (t Tx) PutTemplate(id string, snapshot bool, sourceID string, created time.Time, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	_, err = t.tx.ExecContext(t.ctx, `INSERT INTO templates (id, snapshot, source_id, created_at, doc) VALUES (?,?,?,?,?)
		ON CONFLICT (id) DO UPDATE SET doc=excluded.doc`, id, snapshot, sourceID, created.UnixMicro(), string(b))
	return err
}

// DeleteTemplate removes a template and its names; absent is fine.
func (t Tx) DeleteTemplate(id string) error {
	_, err := t.tx.ExecContext(t.ctx, "DELETE FROM templates WHERE id=?", id)
	return err
}

// Name points name at the template. With move it may point elsewhere before;
// without, that is ErrNameTaken.
func (t Tx) Name(name, templateID string, move bool) error {
	var cur string
	err := t.tx.QueryRowContext(t.ctx, "SELECT template_id FROM template_names WHERE name=?", name).Scan(&cur)
	if err == nil && cur != templateID && !move {
		return fmt.Errorf("template name %q: %w", name, ErrNameTaken)
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	_, err = t.tx.ExecContext(t.ctx, `INSERT INTO template_names (name, template_id) VALUES (?,?)
		ON CONFLICT (name) DO UPDATE SET template_id=excluded.template_id`, name, templateID)
	return err
}

// AddEvent appends an event and gives its sequence number.
func (t Tx) AddEvent(sandboxID string, at time.Time, kind, message string, fields map[string]string) (int64, error) {
	b, err := json.Marshal(fields)
	if err != nil {
		return 0, err
	}
	r, err := t.tx.ExecContext(t.ctx, "INSERT INTO events (sandbox_id, time, kind, message, fields) VALUES (?,?,?,?,?)",
		sandboxID, at.UnixMicro(), kind, message, string(b))
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}

// Sandboxes calls f with every sandbox's document.
func (j *Journal) Sandboxes(ctx context.Context, f func(id string, doc []byte) error) error {
	return j.each(ctx, "SELECT id, doc FROM sandboxes ORDER BY id", f)
}

// Templates calls f with every template's document, oldest first.
func (j *Journal) Templates(ctx context.Context, f func(id string, doc []byte) error) error {
	return j.each(ctx, "SELECT id, doc FROM templates ORDER BY created_at, id", f)
}

// Names calls f with every template name.
func (j *Journal) Names(ctx context.Context, f func(name, templateID string) error) error {
	return j.each(ctx, "SELECT name, template_id FROM template_names ORDER BY name",
		func(name string, id []byte) error { return f(name, string(id)) })
}

func (j *Journal) each(ctx context.Context, query string, f func(string, []byte) error) error {
	rows, err := j.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k string
		var v []byte
		if err := rows.Scan(&k, &v); err != nil {
			return err
		}
		if err := f(k, v); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Event is one row of history.
type Event struct {
	Seq       int64
	Time      time.Time
	SandboxID string
	Kind      string
	Message   string
	Fields    map[string]string
}

// Events gives events of a sandbox ("" for all) after seq, oldest first.
func (j *Journal) Events(ctx context.Context, sandboxID string, after int64, limit int) ([]Event, error) {
	rows, err := j.db.QueryContext(ctx, `SELECT seq, sandbox_id, time, kind, message, fields FROM events
		WHERE (?1 = '' OR sandbox_id = ?1) AND seq > ?2 ORDER BY seq LIMIT ?3`, sandboxID, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Event
	for rows.Next() {
		var e Event
		var at int64
		var fields string
		if err := rows.Scan(&e.Seq, &e.SandboxID, &at, &e.Kind, &e.Message, &fields); err != nil {
			return nil, err
		}
		e.Time = time.UnixMicro(at)
		if err := json.Unmarshal([]byte(fields), &e.Fields); err != nil {
			return nil, fmt.Errorf("event %d: %w", e.Seq, err)
		}
		out = append(out, e)
	}
	return out, rows.Err()
}

// PruneEvents removes events older than t.
func (j *Journal) PruneEvents(ctx context.Context, t time.Time) error {
	_, err := j.db.ExecContext(ctx, "DELETE FROM events WHERE time < ?", t.UnixMicro())
	return err
}

// Meta reads a fact about the node; ErrNotFound when never set.
func (j *Journal) Meta(ctx context.Context, key string) (string, error) {
	var v string
	err := j.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key=?", key).Scan(&v)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("%s: %w", key, ErrNotFound)
	}
	return v, err
}

// SetMeta writes a fact about the node.
func (j *Journal) SetMeta(ctx context.Context, key, value string) error {
	_, err := j.db.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES (?,?) ON CONFLICT (key) DO UPDATE SET value=excluded.value", key, value)
	return err
}
