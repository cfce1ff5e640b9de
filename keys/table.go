package keys

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// migrations brings the table from version i to i+1. Only ever append. The
// version has a table of its own because the database is shared with the
// journal, which owns PRAGMA user_version.
var migrations = []string{
	`CREATE TABLE keys (
		id           TEXT PRIMARY KEY,
		space        TEXT NOT NULL,
		name         TEXT NOT NULL,
		sha256       TEXT NOT NULL UNIQUE,
		mask_prefix  TEXT NOT NULL,
		mask_suffix  TEXT NOT NULL,
		created_at   INTEGER NOT NULL, -- microseconds since 1970, UTC
		last_used_at INTEGER NOT NULL  -- the same; 0 for never
	) STRICT`,
}

func migrate(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS keys_schema (version INTEGER NOT NULL) STRICT`); err != nil {
		return err
	}
	version := 0
	err = tx.QueryRowContext(ctx, `SELECT version FROM keys_schema`).Scan(&version)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = tx.ExecContext(ctx, `INSERT INTO keys_schema (version) VALUES (0)`)
	case err == nil && version > len(migrations):
		err = fmt.Errorf("table is of version %d, this program knows %d; use the newer program that wrote it", version, len(migrations))
	}
	if err != nil {
		return err
	}
	for ; version < len(migrations); version++ {
		if _, err := tx.ExecContext(ctx, migrations[version]); err != nil {
			return fmt.Errorf("migrate to version %d: %w", version+1, err)
		}
	}
	if _, err := tx.ExecContext(ctx, `UPDATE keys_schema SET version = ?`, version); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *Store) load(ctx context.Context) error {
	rows, err := s.db.QueryContext(ctx,
		`SELECT id, space, name, sha256, mask_prefix, mask_suffix, created_at, last_used_at FROM keys`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		e := &entry{}
		var hash string
		var created, used int64
		if err := rows.Scan(&e.ID, &e.Space, &e.Name, &hash, &e.MaskPrefix, &e.MaskSuffix, &created, &used); err != nil {
			return err
		}
		raw, err := hex.DecodeString(hash)
		if err != nil || len(raw) != sha256.Size {
			return fmt.Errorf("key %s has a damaged hash", e.ID)
		}
		copy(e.hash[:], raw)
		e.CreatedAt = time.UnixMicro(created).UTC()
		if used != 0 {
			e.LastUsedAt = time.UnixMicro(used).UTC()
			e.recorded = e.LastUsedAt
		}
		s.byHash[e.hash] = e
	}
	return rows.Err()
}
