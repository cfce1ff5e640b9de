CREATE TABLE sandboxes (
  id         TEXT PRIMARY KEY,
  state      TEXT NOT NULL,
  doc        TEXT NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE templates (
  id         TEXT PRIMARY KEY,
  snapshot   INTEGER NOT NULL,
  source_id  TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  doc        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE template_names (
  name        TEXT PRIMARY KEY,
  template_id TEXT NOT NULL REFERENCES templates(id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  seq        INTEGER PRIMARY KEY AUTOINCREMENT,
  sandbox_id TEXT NOT NULL,
  time       INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  message    TEXT NOT NULL,
  fields     TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_sandbox ON events (sandbox_id, seq);

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
