"""The tables: a clear index in narrow ones, opaque blobs beside it."""

APPLICATION_ID = 0x46696E63
SCHEMA_VERSION = 1

SCHEMA = """
-- `id` is a digest of key id and nonce, `op` one of the operation that consumed it.
CREATE TABLE nonces (id BLOB PRIMARY KEY, expires_at INTEGER NOT NULL, op INTEGER NOT NULL) WITHOUT ROWID;

-- `id` is a digest of the key's three parts. `lease_until` is null while nobody holds the turn.
CREATE TABLE turns (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
    listing TEXT NOT NULL, invocation_id TEXT NOT NULL, turn_id TEXT NOT NULL,
    key_id TEXT NOT NULL, conversation_id TEXT NOT NULL, input_digest TEXT NOT NULL,
    op TEXT NOT NULL, epoch INTEGER NOT NULL, attempt INTEGER NOT NULL, lease_until REAL, keep_until REAL NOT NULL,
    facts BLOB NOT NULL, saved BLOB, reply BLOB
);
CREATE INDEX turns_held ON turns (lease_until, key_id) WHERE lease_until IS NOT NULL;
CREATE INDEX turns_over ON turns (keep_until);

-- `id` is a digest of listing and conversation.
CREATE TABLE questions (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
    listing TEXT NOT NULL, conversation_id TEXT NOT NULL,
    version TEXT NOT NULL, keep_until REAL NOT NULL, record BLOB NOT NULL
);
CREATE INDEX questions_over ON questions (keep_until);

-- What a repeated dispatch is answered with, long after its task is gone. `id` is a digest of listing and
-- invocation id, `op` one of the operation that was admitted.
CREATE TABLE receipts (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
    input_digest TEXT NOT NULL, op INTEGER NOT NULL, keep_until REAL NOT NULL, receipt BLOB NOT NULL
);
CREATE INDEX receipts_over ON receipts (keep_until);

-- A task without its blobs, so that a heartbeat rewrites little. `id` is a digest of the task id. `ready_since` is
-- null unless the task waits for a worker, `lease_until` unless somebody holds it, `keep_until` until it has ended.
-- `commit_op` names the last change, `settled_op` and `settled_sequence` the last delivery that was settled.
CREATE TABLE tasks (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE,
    task_id TEXT NOT NULL, listing TEXT NOT NULL, invocation_id TEXT NOT NULL, key_id TEXT NOT NULL,
    state TEXT NOT NULL, deadline REAL NOT NULL, ready_since REAL, keep_until REAL,
    version INTEGER NOT NULL, epoch INTEGER NOT NULL, attempt INTEGER NOT NULL, lease_until REAL,
    lease_op TEXT, commit_op TEXT, settled_op TEXT, settled_sequence INTEGER
);
CREATE INDEX tasks_ready ON tasks (listing, ready_since) WHERE ready_since IS NOT NULL;
CREATE INDEX tasks_held ON tasks (listing, lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX tasks_held_under ON tasks (lease_op) WHERE lease_until IS NOT NULL;
CREATE INDEX tasks_open ON tasks (deadline) WHERE keep_until IS NULL;
CREATE INDEX tasks_over ON tasks (keep_until) WHERE keep_until IS NOT NULL;

-- The blobs, under the task's number.
CREATE TABLE dispatches (number INTEGER PRIMARY KEY, dispatch BLOB NOT NULL);
CREATE TABLE records (number INTEGER PRIMARY KEY, record BLOB NOT NULL);

-- The outbox without its bodies. `task` is the task's number. `is_head` marks a task's oldest live event, the only
-- one that may leave. `claim_until` is null unless somebody claimed the event, `reason` unless it is dead.
CREATE TABLE events (
    number INTEGER PRIMARY KEY, task INTEGER NOT NULL, sequence INTEGER NOT NULL,
    host TEXT NOT NULL, replaceable INTEGER NOT NULL, is_head INTEGER NOT NULL,
    attempts INTEGER NOT NULL, created_at REAL NOT NULL, due_at REAL NOT NULL,
    claim_op TEXT, claim_until REAL, reason TEXT, UNIQUE (task, sequence)
);
CREATE INDEX events_due ON events (host, due_at) WHERE is_head;

-- What is sent, under the event's number.
CREATE TABLE letters (
    number INTEGER PRIMARY KEY, url TEXT NOT NULL, callback_key_id TEXT NOT NULL, body BLOB NOT NULL
);

CREATE TABLE revisions (
    key_id TEXT PRIMARY KEY, listing TEXT NOT NULL, fingerprint TEXT NOT NULL, first_seen REAL NOT NULL
);

-- One row, written to find out whether writing works.
CREATE TABLE probe (number INTEGER PRIMARY KEY, count INTEGER NOT NULL);
INSERT INTO probe VALUES (1, 0);
"""
