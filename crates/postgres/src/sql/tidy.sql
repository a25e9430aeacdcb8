-- tidy: removes the rows of names that nobody has used for a while. Their last token goes to the floor in the same
-- transaction, so that whoever makes the row anew goes on above it.
CREATE OR REPLACE FUNCTION {tidy}(names text[], quiet bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  w text;
  n {name};
  was {name};
  now_us bigint := {clock}();
  highest bigint := 0;
BEGIN
  FOR w IN SELECT DISTINCT u.name COLLATE "C" AS name FROM unnest(names) AS u (name) ORDER BY 1 LOOP
    CONTINUE WHEN NOT pg_try_advisory_xact_lock_shared({key}(w));
    SELECT * INTO n FROM {name} WHERE name = w FOR UPDATE;
    CONTINUE WHEN NOT FOUND;
    was := n;
    now_us := {clock}();
    n := {unfold_old}({sweep}(n, now_us, NULL::bigint), now_us);
    IF n.held + n.line = 0 AND abs(now_us - n.used) >= quiet THEN
      DELETE FROM {name} WHERE name = w;
      highest := greatest(highest, n.last);
    ELSIF n IS DISTINCT FROM was THEN
      PERFORM {put}(n);
    END IF;
  END LOOP;
  IF highest > 0 THEN
    UPDATE {floor} SET value = highest WHERE one AND value < highest;
  END IF;
  RETURN now_us;
END $$;

-- tidy_after: the same for what dead clients left in the next so many names after this one. Gives the time, and the last name
-- that was looked at, or null at the end. Marks whose time is over, dead clients and letters that nobody fetched go along.
CREATE OR REPLACE FUNCTION {tidy_after}(after text, many integer, quiet bigint, OUT at bigint, OUT came_by text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  w record;
  seen integer := 0;
  due text[] := '{}';
BEGIN
  at := {clock}();
  FOR w IN
    SELECT n.name,
           (n.held + n.line = 0 AND abs(at - n.used) >= quiet) OR n.opens <= at OR (
             SELECT coalesce(c.alive, 0) <= at
               FROM {ticket} h LEFT JOIN {client} c ON c.client = h.client
              WHERE h.name = n.name AND h.waiting AND h.seq >= n.front
              ORDER BY h.seq
              LIMIT 1
           ) AS is_due
      FROM {name} n
     WHERE n.name > coalesce(after, '')
     ORDER BY n.name
     LIMIT many
  LOOP
    seen := seen + 1;
    came_by := w.name;
    IF w.is_due THEN
      due := due || w.name;
    END IF;
  END LOOP;
  IF seen < many THEN
    came_by := NULL;
  END IF;
  IF due <> '{}' THEN
    at := {tidy}(due, quiet);
  END IF;
  DELETE FROM {mark} WHERE id IN (SELECT id FROM {mark} WHERE until <= at LIMIT 500 FOR UPDATE SKIP LOCKED);
  DELETE FROM {client} WHERE client IN (SELECT client FROM {client} WHERE alive <= at LIMIT 500 FOR UPDATE SKIP LOCKED);
  DELETE FROM {mail} WHERE (client, number) IN (
    SELECT client, number FROM {mail} WHERE until <= at LIMIT 500 FOR UPDATE SKIP LOCKED
  );
END $$;

-- leave: a client is about to end. What it has here besides claims goes at once, unless it still waits for something.
CREATE OR REPLACE FUNCTION {leave}(me bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {mail} WHERE client = me;
  DELETE FROM {client} WHERE client = me AND NOT EXISTS (SELECT FROM {ticket} WHERE client = me AND waiting);
  RETURN {clock}();
END $$;
