-- What others see of a name, holders first, then the line in its order. A row whose `id` is null is somebody's who has the
-- lock and shows nothing: not yet, or because it is none of ours.
CREATE OR REPLACE FUNCTION {session_view}(of_names text[]) RETURNS TABLE (
  name text, granted boolean, pid integer, id bytea, kind smallint, shared boolean, token bigint, age bigint, left_of_it bigint,
  os_pid bigint, host text, note text, asked_pid bigint, asked_host text, asked_reason text
) LANGUAGE sql STABLE AS $$
  -- All locks are looked at once, however many names there are.
  WITH locks AS MATERIALIZED (
    SELECT l.classid::bigint << 32 | l.objid::bigint AS key, l.pid, bool_and(l.mode = 'ShareLock') AS shared,
           bool_or(l.granted) AS granted, min(l.waitstart) AS waits
      FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 1
       AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
     GROUP BY 1, 2
  ), names AS MATERIALIZED (
    SELECT n, {lock_key}(n) AS key FROM unnest(of_names) n
  )
  SELECT n.n, l.granted, l.pid, s.id, s.kind, l.shared, s.token,
         (extract(epoch FROM clock_timestamp() - s.since) * 1000000)::bigint,
         greatest(s.ttl - coalesce((extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint, 0), 0),
         s.os_pid, s.host, s.note, s.asked_pid, s.asked_host, s.asked_reason
    FROM names n
    JOIN locks l ON l.key = n.key
    LEFT JOIN {session} s ON s.pid = l.pid AND s.name = n.n
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
   ORDER BY n.n COLLATE "C", l.granted DESC, s.token, l.waits, s.since
$$;

-- Names in use, in order.
CREATE OR REPLACE FUNCTION {session_names}(beginning text, later_than text, at_most bigint) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
  WITH locks AS MATERIALIZED (
    SELECT l.classid::bigint << 32 | l.objid::bigint AS key, l.pid
      FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 1
  ), shown AS MATERIALIZED (
    SELECT s.name, s.pid, {lock_key}(s.name) AS key
      FROM {session} s
     WHERE starts_with(s.name, beginning) AND (later_than IS NULL OR s.name > later_than)
  )
  SELECT DISTINCT s.name COLLATE "C" FROM shown s JOIN locks l ON l.key = s.key AND l.pid = s.pid ORDER BY 1 LIMIT at_most
$$;

-- How many hold something that is not shown yet.
CREATE OR REPLACE FUNCTION {session_unshown}() RETURNS bigint LANGUAGE sql STABLE AS $$
  WITH marks AS MATERIALIZED (
    SELECT m.pid, m.objid::bigint AS mark
      FROM pg_locks m
     WHERE m.locktype = 'advisory' AND m.granted AND m.objsubid = 2 AND m.objid::bigint <> 7
       AND m.classid::bigint = {lock_space}()::bigint & 4294967295
       AND m.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  ), shown AS MATERIALIZED (
    SELECT s.pid, {lock_mark}({lock_key}(s.name), s.kind)::bigint AS mark FROM {session} s WHERE s.token IS NOT NULL
  )
  SELECT count(*) FROM marks m LEFT JOIN shown s ON s.pid = m.pid AND s.mark = m.mark WHERE s.pid IS NULL
$$;

-- Leaves a request with every holder to let go, and tells their clients. How many.
CREATE OR REPLACE FUNCTION {session_request}(of_name text, by_pid bigint, by_host text, why text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  told record;
  many bigint := 0;
BEGIN
  FOR told IN
    UPDATE {session} SET asked_pid = by_pid, asked_host = by_host, asked_reason = why
     WHERE name = of_name AND token IS NOT NULL
       AND pid IN (SELECT pid FROM {locks_of}({lock_key}(of_name)) WHERE granted)
    RETURNING client
  LOOP
    PERFORM pg_notify('{PREFIX}' || lpad(to_hex(told.client), 16, '0'), '');
    many := many + 1;
  END LOOP;
  RETURN many;
END $$;

-- Tells holders, all or the one with this token, that they have lost it. The sessions that are to let go.
CREATE OR REPLACE FUNCTION {session_break}(of_name text, only_token bigint) RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
  told record;
  pids integer[] := '{}';
BEGIN
  FOR told IN
    UPDATE {session} SET broken = true
     WHERE name = of_name AND (only_token IS NULL OR token = only_token)
       AND pid IN (SELECT pid FROM {locks_of}({lock_key}(of_name)) WHERE granted)
    RETURNING client, pid
  LOOP
    PERFORM pg_notify('{PREFIX}' || lpad(to_hex(told.client), 16, '0'), '');
    pids := pids || told.pid;
  END LOOP;
  -- Whoever shows nothing can be told nothing.
  IF only_token IS NULL THEN
    pids := pids || ARRAY(
      SELECT l.pid FROM {locks_of}({lock_key}(of_name)) l
       WHERE l.granted AND NOT EXISTS (SELECT FROM {session} s WHERE s.pid = l.pid AND s.name = of_name)
    );
  END IF;
  RETURN pids;
END $$;

-- Which of these sessions still have what they were told to let go of.
CREATE OR REPLACE FUNCTION {session_broken}(of_name text, pids integer[]) RETURNS integer[] LANGUAGE sql STABLE AS $$
  SELECT ARRAY(
    SELECT l.pid FROM {locks_of}({lock_key}(of_name)) l
     WHERE l.granted AND l.pid = ANY (pids)
       AND NOT EXISTS (SELECT FROM {session} s WHERE s.pid = l.pid AND s.name = of_name AND NOT s.broken)
  )
$$;

-- Removes what sessions that are no more have left.
CREATE OR REPLACE FUNCTION {session_tidy}() RETURNS void LANGUAGE sql AS $$
  DELETE FROM {session} s WHERE NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = s.pid)
$$;
