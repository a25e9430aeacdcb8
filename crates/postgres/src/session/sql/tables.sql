-- Session mode: the locks are the server's own advisory locks, which end with the session that has them. What is here is for
-- people to see, and for tokens.
--
-- A name's lock is the advisory lock with the key {PREFIX}lock_key(name). Whoever holds it also holds, shared, a mark that says
-- as which kind: an advisory lock with two keys, of which the first is the same for all names of these tables.

-- Who holds and who waits. A hold is shown a few milliseconds after it was granted, a waiter before it waits. A row counts only
-- while its session has the lock, or waits for it. Nothing here is worth a flush: the locks do not outlive the server either.
CREATE UNLOGGED TABLE IF NOT EXISTS {session} (
  pid integer NOT NULL,               -- the session
  id bytea NOT NULL,                  -- the claim's id: its owner's secret
  name text COLLATE "C" NOT NULL,
  kind smallint NOT NULL,             -- 0 mutex, 1 fair mutex, 2 rw lock, 4 election
  shared boolean NOT NULL,
  client bigint NOT NULL,
  ttl bigint NOT NULL,                -- in microseconds
  since timestamptz NOT NULL,         -- when it joined the line, or was let in
  token bigint,                       -- none while it waits
  os_pid bigint NOT NULL,
  host text NOT NULL,
  note text NOT NULL,
  asked_pid bigint,                   -- somebody asked it to let go: who, and why
  asked_host text,
  asked_reason text,
  broken boolean NOT NULL DEFAULT false -- it was told to let go, or its session will be ended
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- Asked for only if they are not there: CREATE INDEX waits for all who write to the table, also where there is nothing to do.
DO $$ BEGIN
  IF to_regclass('{session_name}') IS NULL THEN
    CREATE INDEX {PREFIX}session_name ON {session} (name);
  END IF;
  IF to_regclass('{session_pid}') IS NULL THEN
    CREATE INDEX {PREFIX}session_pid ON {session} (pid);
  END IF;
END $$;

-- Tokens. Whoever connects sets it to the clock, in microseconds, if that is ahead: so it goes up whatever the server forgets.
CREATE SEQUENCE IF NOT EXISTS {token};
-- Has a row while the server remembers every token that it gave: a crash empties it, and nobody waited for the tokens to be on the disk.
CREATE UNLOGGED TABLE IF NOT EXISTS {seeded} (one boolean PRIMARY KEY DEFAULT true);
