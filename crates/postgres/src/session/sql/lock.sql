-- The advisory lock of a name.
CREATE OR REPLACE FUNCTION {lock_key}(of_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT hashtextextended('{SCHEMA}.{PREFIX}/' || of_name COLLATE "C", 0)
$$;

-- The first key of all marks.
CREATE OR REPLACE FUNCTION {lock_space}() RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT hashtext('{SCHEMA}.{PREFIX}')
$$;

-- The second key of a mark: 28 bits of the name's, and the kind.
CREATE OR REPLACE FUNCTION {lock_mark}(key bigint, kind integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT (key & 2147483640)::integer | kind
$$;

-- All advisory locks of a name: who has one, and who waits for one.
CREATE OR REPLACE FUNCTION {locks_of}(key bigint) RETURNS TABLE (pid integer, shared boolean, granted boolean, waits timestamptz)
LANGUAGE sql STABLE AS $$
  SELECT l.pid, bool_and(l.mode = 'ShareLock'), bool_or(l.granted), min(l.waitstart)
    FROM pg_locks l
   WHERE l.locktype = 'advisory' AND l.objsubid = 1
     AND l.classid::bigint = (key >> 32) & 4294967295 AND l.objid::bigint = key & 4294967295
     AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   GROUP BY l.pid
$$;

-- As which other kind a name is locked; null if as none.
CREATE OR REPLACE FUNCTION {locked_as}(key bigint, but_not integer) RETURNS integer LANGUAGE sql STABLE AS $$
  SELECT (m.objid::bigint & 7)::integer
    FROM pg_locks m
   WHERE m.locktype = 'advisory' AND m.granted AND m.objsubid = 2
     AND m.classid::bigint = {lock_space}()::bigint & 4294967295
     AND m.objid::bigint & 2147483640 = key & 2147483640 AND m.objid::bigint & 7 <> but_not
     AND m.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     AND m.pid IN (SELECT pid FROM {locks_of}(key) WHERE granted)
   LIMIT 1
$$;

-- Locks if that can be had at once. Gives the token; 0 if it cannot; -1 minus the kind if it is in use as another one.
CREATE OR REPLACE FUNCTION {session_try}(of_name text, of_kind integer, is_shared boolean) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  key CONSTANT bigint := {lock_key}(of_name);
BEGIN
  IF (CASE WHEN is_shared THEN pg_try_advisory_lock_shared(key) ELSE pg_try_advisory_lock(key) END) THEN
    PERFORM pg_advisory_lock_shared({lock_space}(), {lock_mark}(key, of_kind));
    RETURN nextval('{token}');
  END IF;
  RETURN coalesce(-1 - {locked_as}(key, of_kind), 0);
END $$;

-- Waits in the server's line, for so many milliseconds or, with 0, for ever. The claim is shown before. Gives the token.
CREATE OR REPLACE FUNCTION {session_wait}(of_name text, of_kind integer, is_shared boolean, milliseconds integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  key CONSTANT bigint := {lock_key}(of_name);
BEGIN
  PERFORM set_config('lock_timeout', milliseconds::text, true);
  IF is_shared THEN
    PERFORM pg_advisory_lock_shared(key);
  ELSE
    PERFORM pg_advisory_lock(key);
  END IF;
  PERFORM set_config('lock_timeout', '0', true);
  PERFORM pg_advisory_lock_shared({lock_space}(), {lock_mark}(key, of_kind));
  RETURN nextval('{token}');
END $$;

-- Lets go of what this session certainly has. Whoever is next is let in before this is over, and does not wait for the rest.
CREATE OR REPLACE FUNCTION {session_unlock}(
  of_name text, of_kind integer, is_shared boolean, of_id bytea, is_shown boolean
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  key CONSTANT bigint := {lock_key}(of_name);
  was_ours boolean;
BEGIN
  PERFORM pg_advisory_unlock_shared({lock_space}(), {lock_mark}(key, of_kind));
  was_ours := CASE WHEN is_shared THEN pg_advisory_unlock_shared(key) ELSE pg_advisory_unlock(key) END;
  IF is_shown THEN
    DELETE FROM {session} WHERE pid = pg_backend_pid() AND id = of_id;
  END IF;
  RETURN was_ours;
END $$;

-- Lets go of whatever this session has of a name. A lock may have been granted in the very moment in which its statement failed.
CREATE OR REPLACE FUNCTION {session_give_up}(of_name text, of_kind integer, of_id bytea) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  key CONSTANT bigint := {lock_key}(of_name);
  mark CONSTANT integer := {lock_mark}(key, of_kind);
  l record;
BEGIN
  DELETE FROM {session} WHERE pid = pg_backend_pid() AND id = of_id;
  FOR l IN
    SELECT objsubid = 2 AS is_mark, mode = 'ShareLock' AS shared
      FROM pg_locks
     WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND granted
       AND ((objsubid = 1 AND classid::bigint = (key >> 32) & 4294967295 AND objid::bigint = key & 4294967295)
         OR (objsubid = 2 AND classid::bigint = {lock_space}()::bigint & 4294967295 AND objid::bigint = mark))
     ORDER BY objsubid DESC
  LOOP
    IF l.is_mark THEN
      PERFORM pg_advisory_unlock_shared({lock_space}(), mark);
    ELSIF l.shared THEN
      PERFORM pg_advisory_unlock_shared(key);
    ELSE
      PERFORM pg_advisory_unlock(key);
    END IF;
  END LOOP;
END $$;

-- Makes a reader of the writer, with the same token. A session that has the lock alone gets the
-- shared one at once, ahead of everybody who waits.
CREATE OR REPLACE FUNCTION {session_downgrade}(of_name text, of_id bytea, is_shown boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  key CONSTANT bigint := {lock_key}(of_name);
BEGIN
  PERFORM pg_advisory_lock_shared(key);
  PERFORM pg_advisory_unlock(key);
  IF is_shown THEN
    UPDATE {session} SET shared = true WHERE pid = pg_backend_pid() AND id = of_id;
  END IF;
END $$;

-- Whether the server may have forgotten tokens: since it started, or since one of its processes crashed, nobody has set them.
CREATE OR REPLACE FUNCTION {session_is_unseeded}() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN NOT EXISTS (SELECT FROM {seeded})
      OR (SELECT last_value FROM {token}) < extract(epoch FROM pg_postmaster_start_time()) * 1000000;
END $$;

-- Sets the tokens to the clock if they are behind it: by more than a second, so that two who do so do not meet those who draw
-- one; or where the server may have forgotten some. They are never set ahead of the clock: what was forgotten is behind it then.
CREATE OR REPLACE FUNCTION {session_seed}() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  clock bigint;
  started CONSTANT bigint := extract(epoch FROM pg_postmaster_start_time()) * 1000000;
BEGIN
  PERFORM pg_advisory_xact_lock({lock_space}(), 7);
  clock := extract(epoch FROM clock_timestamp()) * 1000000;
  IF {session_is_unseeded}() OR (SELECT last_value FROM {token}) < clock - 1000000 THEN
    -- A clock that was set back since the start does not take them along.
    PERFORM setval('{token}', greatest(clock, started, (SELECT last_value FROM {token})));
    INSERT INTO {seeded} DEFAULT VALUES ON CONFLICT DO NOTHING;
  END IF;
END $$;
