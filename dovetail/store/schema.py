"""The store's tables, as a list of migrations: the n-th takes version n to n + 1. Never edited, only added to."""

READABLE = 3
"""The oldest version that can be read as it is."""
MIGRATIONS = (
    """
    CREATE TABLE tasks (
        identity TEXT PRIMARY KEY,
        workload TEXT NOT NULL,
        name TEXT NOT NULL,
        record TEXT NOT NULL
    );
    CREATE TABLE events (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        task TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        at_seconds REAL NOT NULL,
        data TEXT NOT NULL
    );
    CREATE INDEX events_by_task ON events (task, number);
    CREATE TABLE points (
        task TEXT NOT NULL,
        name TEXT NOT NULL,
        step INTEGER NOT NULL,
        value REAL,
        at_seconds REAL NOT NULL,
        PRIMARY KEY (task, name, step)
    ) WITHOUT ROWID;
    CREATE TABLE profiles (
        family TEXT NOT NULL,
        technique TEXT NOT NULL,
        kind TEXT NOT NULL,
        count INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (family, technique, kind, count)
    );
    CREATE TABLE plans (
        number INTEGER PRIMARY KEY,
        workload TEXT NOT NULL,
        at_seconds REAL NOT NULL,
        record TEXT NOT NULL
    );
    CREATE TABLE hardware (
        name TEXT PRIMARY KEY,
        record TEXT NOT NULL
    );
    """,
    # Of the row's other values; none for rows written before.
    """
    ALTER TABLE tasks ADD COLUMN checksum INTEGER;
    ALTER TABLE events ADD COLUMN checksum INTEGER;
    ALTER TABLE points ADD COLUMN checksum INTEGER;
    ALTER TABLE profiles ADD COLUMN checksum INTEGER;
    ALTER TABLE plans ADD COLUMN checksum INTEGER;
    ALTER TABLE hardware ADD COLUMN checksum INTEGER;
    """,
    # The same task may be part of several workloads.
    """
    CREATE TABLE tasks_of_workloads (
        identity TEXT NOT NULL,
        workload TEXT NOT NULL,
        name TEXT NOT NULL,
        record TEXT NOT NULL,
        checksum INTEGER,
        PRIMARY KEY (identity, workload)
    );
    INSERT INTO tasks_of_workloads SELECT identity, workload, name, record, checksum FROM tasks ORDER BY rowid;
    DROP TABLE tasks;
    ALTER TABLE tasks_of_workloads RENAME TO tasks;
    """,
    # From here on every row has its checksum; `seal` is `checksums.checksum`.
    """
    UPDATE tasks SET checksum = seal(identity, workload, name, record) WHERE checksum IS NULL;
    UPDATE events SET checksum = seal(kind, task, attempt, at_seconds, data) WHERE checksum IS NULL;
    UPDATE points SET checksum = seal(task, name, step, value, at_seconds) WHERE checksum IS NULL;
    UPDATE profiles SET checksum = seal(family, technique, kind, count, record) WHERE checksum IS NULL;
    UPDATE plans SET checksum = seal(workload, at_seconds, record) WHERE checksum IS NULL;
    UPDATE hardware SET checksum = seal(name, record) WHERE checksum IS NULL;
    """,
)
