-- touch: looks after a client's waiters. Those whom time alone has made room for are let in, and each is told how it stands.
-- With `beat` the places of all of the client's waiters are kept from now on. Whatever others had to say is fetched along.
-- A look that finds nothing to do writes nothing.
--
-- Gives the time, and for each waiter four numbers:
--   0 waits: 1 if at the head, when time alone may let somebody in or -1    1 let in: token, when, what is left    2 gone
-- and of each letter five texts: what it says, id, pid, host, reason.
CREATE OR REPLACE FUNCTION {touch}(
  me bigint, beat boolean, notify_key bytea, alive_for bigint, names text[], ids uuid[],
  OUT at bigint, OUT answer bigint[], OUT letters text[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  heard CONSTANT bigint := CASE WHEN beat THEN me END;
  w record;
  n {name};
  was {name};
  due text[] := '{}';
BEGIN
  at := {clock}();
  FOR w IN
    SELECT s.name
      FROM (SELECT DISTINCT t.name FROM {ticket} t WHERE t.id = ANY (ids) AND t.waiting) AS mine
      JOIN {name} s ON s.name = mine.name
     WHERE s.opens <= at OR (
       SELECT coalesce(c.alive, 0) <= at AND h.client IS DISTINCT FROM heard
         FROM {ticket} h LEFT JOIN {client} c ON c.client = h.client
        WHERE h.name = s.name AND h.waiting AND h.seq >= s.front
        ORDER BY h.seq
        LIMIT 1
     )
     ORDER BY s.name
  LOOP
    IF pg_try_advisory_xact_lock_shared({key}(w.name)) THEN
      PERFORM FROM {name} WHERE name = w.name FOR UPDATE;
      due := due || w.name;
    END IF;
  END LOOP;
  IF due <> '{}' THEN
    at := {clock}();
    FOR was IN SELECT * FROM {name} WHERE name = ANY (due) LOOP
      n := {sweep}(was, at, heard);
      IF n IS DISTINCT FROM was THEN
        PERFORM {put}(n);
      END IF;
    END LOOP;
  END IF;
  answer := '{}';
  FOR w IN
    SELECT t.id, t.waiting, t.closing, t.seq, t.token, t.since, t.expires, t.lock_delay, u.id AS wanted, s
      FROM unnest(names, ids) WITH ORDINALITY AS u (name, id, place)
      LEFT JOIN {name} s ON s.name = u.name COLLATE "C"
      LEFT JOIN {ticket} t ON t.id = u.id
     ORDER BY u.place
  LOOP
    n := w.s;
    answer := answer || CASE
      WHEN (n.solo).id = w.wanted AND n.opens > at
        THEN ARRAY[1, (n.solo).token, (n.solo).since, n.opens - (n.solo).lock_delay - at]
      WHEN w.waiting THEN ARRAY[0] || {standing}(w.s, w.seq, at) || 0::bigint
      WHEN w.id IS NULL OR w.closing OR w.expires <= at THEN ARRAY[2, 0, 0, 0]
      ELSE ARRAY[1, w.token, w.since, w.expires - w.lock_delay - at]
    END;
  END LOOP;
  IF EXISTS (SELECT FROM {mail} WHERE client = me) THEN
    WITH taken AS (DELETE FROM {mail} WHERE client = me RETURNING *)
    SELECT array_agg(part ORDER BY taken.number, place) INTO letters
      FROM taken, unnest(ARRAY[says::text, id::text, pid::text, host, reason]) WITH ORDINALITY AS parts (part, place);
  END IF;
  IF beat THEN
    PERFORM {hear}(me, notify_key, alive_for, at, alive_for);
  END IF;
END $$;
