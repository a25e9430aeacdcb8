-- What is in the database. All times are microseconds since 1970 by the server's own clock, all durations microseconds.
--
-- Each verb is one function, called alone, so it is one transaction. A verb that changes who holds or waits for a name first
-- locks the name's row, reads the clock when it has it, and changes that row too, whatever it does: so it meets every other
-- such verb there, at any isolation level. Only a renewal touches a ticket without its name, and waits for nobody.

-- One row for each claim that holds or waits, except for a holder that is alone inside.
CREATE TABLE IF NOT EXISTS {ticket} (
  id uuid PRIMARY KEY,                -- the claim's id: its owner's secret
  name text COLLATE "C" NOT NULL,
  seq bigint NOT NULL,                -- its place in the order of asking
  waiting boolean NOT NULL,
  closing boolean NOT NULL DEFAULT false, -- let go or broken, but the name stays closed until it expires
  mode smallint NOT NULL,             -- 0 exclusive, 1 shared, 2 permits
  take bigint NOT NULL,               -- of `room`; an exclusive claim takes all there is, a shared one a single part
  room bigint NOT NULL,
  client bigint NOT NULL,
  ttl bigint NOT NULL,
  handover_ttl bigint NOT NULL,       -- the ttl of a grant that is made while it waits
  lock_delay bigint NOT NULL,         -- how long the name stays closed if this holder is lost
  since bigint NOT NULL,              -- when it joined the line, or was let in
  token bigint,
  expires bigint,                     -- when the next one is let in if nothing more is heard, the lock-delay included
  pid bigint NOT NULL,
  host text NOT NULL,
  note text NOT NULL,
  asked_pid bigint,                   -- somebody asked it to let go: who, and why
  asked_host text,
  asked_reason text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = off);

-- One row for each name in use; an idle one goes after a second.
--
-- A claim that is let in while nobody else is there needs no row of its own: its ticket is in the name's row, so that taking and
-- letting go of a name that nobody else wants is one write of one row each, and handing an exclusive one over touches two. It is made a
-- row by whoever comes in beside it, changes it, or comes to the name when it has been there for a while.
CREATE TABLE IF NOT EXISTS {name} (
  name text COLLATE "C" PRIMARY KEY,
  kind smallint NOT NULL DEFAULT 0,   -- 0 mutex, 1 fair mutex, 2 rw lock, 3 semaphore, 4 election
  room bigint NOT NULL DEFAULT 0,     -- how much there is to take: a semaphore's permits
  last bigint NOT NULL DEFAULT 0,     -- the last token given
  number bigint NOT NULL DEFAULT 0,   -- the last number given to a ticket
  taken bigint NOT NULL DEFAULT 0,    -- how much the holders take together
  held integer NOT NULL DEFAULT 0,    -- how many hold, those included that are closing
  line integer NOT NULL DEFAULT 0,    -- how many wait
  oldest bigint NOT NULL DEFAULT 0,   -- no holder has a lower number
  front bigint NOT NULL DEFAULT 0,    -- no waiter has a lower number
  opens bigint NOT NULL DEFAULT 9223372036854775807, -- no hold ends by time before this
  used bigint NOT NULL DEFAULT 0,     -- when somebody last asked or let go
  marked bigint NOT NULL DEFAULT 0,   -- until then a claim for it may have been ended before it was asked for
  solo {ticket}                       -- who is alone inside, if it has no row; `opens` is when it expires
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = off);

-- Asked for only if they are not there: even where there is nothing to do, CREATE INDEX waits for all who write to the table,
-- and every verb would wait behind it for somebody's long transaction.
DO $$ BEGIN
  IF to_regclass('{ticket_line}') IS NULL THEN
    CREATE INDEX {PREFIX}ticket_line ON {ticket} (name, waiting, seq);
  END IF;
  IF to_regclass('{ticket_client}') IS NULL THEN
    CREATE INDEX {PREFIX}ticket_client ON {ticket} (client) WHERE waiting;
  END IF;
END $$;

-- One row for each client that waits: its waiters are alive while it is.
CREATE TABLE IF NOT EXISTS {client} (
  client bigint PRIMARY KEY,
  alive bigint NOT NULL,              -- until then
  listens boolean NOT NULL            -- whether it hears what is sent to its channel
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, vacuum_truncate = off);

-- With what notifications to a client are sealed: who only knows what is in the other tables cannot make one up. Whoever may read
-- every table and write none finds it empty.
DO $$ BEGIN
  IF to_regclass('{notify_key}') IS NULL THEN
    CREATE TABLE {notify_key} (
      client bigint PRIMARY KEY REFERENCES {client} ON DELETE CASCADE,
      key bytea NOT NULL
    );
    CREATE POLICY writers ON {notify_key} USING (pg_catalog.has_table_privilege('{ticket}'::pg_catalog.regclass, 'UPDATE'));
    ALTER TABLE {notify_key} ENABLE ROW LEVEL SECURITY;
  END IF;
END $$;

-- What others have to say to a client, until it comes for it.
CREATE TABLE IF NOT EXISTS {mail} (
  client bigint NOT NULL,
  number bigint GENERATED ALWAYS AS IDENTITY,
  says smallint NOT NULL,             -- 0: somebody asks you to let go of this claim; 1: it was ended by force
  id uuid NOT NULL,
  pid bigint,
  host text,
  reason text,
  until bigint NOT NULL,              -- after this nobody comes for it any more
  PRIMARY KEY (client, number)
);

-- Claims that were ended while a request for them may still be on its way.
CREATE TABLE IF NOT EXISTS {mark} (
  id uuid PRIMARY KEY,
  until bigint NOT NULL
);
DO $$ BEGIN
  IF to_regclass('{mark_until}') IS NULL THEN
    CREATE INDEX {PREFIX}mark_until ON {mark} (until); -- whoever makes a name's row looks for the last
  END IF;
END $$;

-- Version 1 had every ticket in a row of its own, and a wait that gave nothing. Its functions that know no other place for a ticket go: a
-- program of that version is told that they are not there, and not that its holds are lost.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('{name}') AND attname = 'solo') THEN
    ALTER TABLE {name} ADD COLUMN marked bigint NOT NULL DEFAULT 0, ADD COLUMN solo {ticket};
    UPDATE {name} SET marked = coalesce((SELECT max(until) FROM {mark}), 0);
    DROP FUNCTION IF EXISTS {session_wait}(text, integer, boolean, integer);
    DROP FUNCTION IF EXISTS {renew}(uuid[]);
    DROP FUNCTION IF EXISTS {touch}(bigint, boolean, boolean, bigint, uuid[]);
    DROP FUNCTION IF EXISTS {recount}(text);
  END IF;
END $$;

-- Cells: values with a version.
CREATE TABLE IF NOT EXISTS {cell} (
  name text COLLATE "C" PRIMARY KEY,
  version bigint NOT NULL,
  value bytea NOT NULL
) WITH (fillfactor = 70);

-- The highest token or version of what has been removed: whatever comes next is higher.
CREATE TABLE IF NOT EXISTS {floor} (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  value bigint NOT NULL
) WITH (fillfactor = 10);
INSERT INTO {floor} (value) VALUES (0) ON CONFLICT DO NOTHING;

-- Which tables these are, and how they are used; the first client decides on the liveness.
CREATE TABLE IF NOT EXISTS {setup} (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  version integer NOT NULL,
  liveness text CHECK (liveness IN ('lease', 'session'))
);
INSERT INTO {setup} (version) VALUES ({VERSION}) ON CONFLICT (one) DO UPDATE SET version = {VERSION};
