-- end: ends claims, whatever they were, and hands over to those who may now enter; all in one transaction.
--
-- A hold that is let go before its `min_hold` is over keeps the name closed until then. With a `mark` no request for the
-- claim is granted for so long, however late it comes.
--
-- Gives for each two numbers: 0 if nothing of it is left, 1 if somebody's transaction has the name, 2 if nothing of it was there but
-- perhaps what keeps the name closed; and the time.
CREATE OR REPLACE FUNCTION {end}(names text[], ids uuid[], min_holds bigint[], marks bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  n {name};
  was {name};
  t {ticket};
  now_us bigint;
  locked boolean;
  ended boolean;
  was_there boolean;
  answer bigint[] := '{}';
BEGIN
  FOR i IN 1 .. cardinality(names) LOOP
    was_there := false;
    locked := NOT pg_try_advisory_xact_lock_shared({key}(names[i]));
    IF locked THEN
      now_us := {clock}();
      -- Over by time, it is swept by whoever comes next. Else it is in the way of the transaction's end, and must wait.
      IF EXISTS (
        SELECT FROM {ticket} w LEFT JOIN {client} c ON c.client = w.client
         WHERE w.id = ids[i] AND NOT w.closing AND CASE WHEN w.waiting THEN c.alive > now_us ELSE w.expires > now_us END
      ) OR EXISTS (SELECT FROM {name} WHERE name = names[i] AND (solo).id = ids[i] AND opens > now_us)
        OR marks[i] > 0 -- nor can it be written into the name's row that there is a mark
      THEN
        answer := answer || ARRAY[1, now_us];
        CONTINUE;
      END IF;
    ELSE
      SELECT * INTO n FROM {name} WHERE name = names[i] FOR UPDATE;
      locked := NOT FOUND;
      IF locked AND marks[i] > 0 THEN
        n := {enter}(names[i]); -- so that a late request meets the mark, and not us half-way
        locked := false;
      END IF;
      now_us := {clock}();
    END IF;
    IF NOT locked THEN
      was := n;
      ended := false;
      IF n.used = 0 THEN
        n.used := now_us;
      END IF;
      IF (n.solo).id = ids[i] AND min_holds[i] > 0 THEN
        n := {unfold}(n);
      ELSIF (n.solo).id = ids[i] THEN
        ended := true;
        was_there := true;
        n.solo := NULL;
        n.held := 0;
        n.taken := 0;
        n.opens := 9223372036854775807;
        n.used := now_us;
      END IF;
      -- A clock that was set back may show less than when the hold began; then it began now.
      IF min_holds[i] > 0 THEN
        UPDATE {ticket}
           SET closing = true, expires = least(since, now_us) + min_holds[i],
               asked_pid = NULL, asked_host = NULL, asked_reason = NULL
         WHERE id = ids[i] AND name = names[i] AND NOT waiting AND NOT closing AND expires > now_us
           AND least(since, now_us) + min_holds[i] > now_us
        RETURNING expires INTO t.expires;
        IF FOUND THEN
          was_there := true;
          n.opens := least(n.opens, t.expires);
          n.used := now_us;
        END IF;
      END IF;
      IF NOT ended AND n.held + n.line > 0 THEN
        DELETE FROM {ticket} WHERE id = ids[i] AND name = names[i] AND NOT closing RETURNING waiting, take INTO t.waiting, t.take;
      ELSE
        t := NULL;
      END IF;
      IF t.take IS NOT NULL THEN
        was_there := true;
        n.used := now_us;
        IF t.waiting THEN
          n.line := n.line - 1;
        ELSE
          n.held := n.held - 1;
          n.taken := n.taken - t.take;
          IF n.held = 0 THEN
            n.opens := 9223372036854775807;
          END IF;
        END IF;
      END IF;
      IF n.opens <= now_us OR n.line > 0 THEN
        n := {sweep}(n, now_us, NULL::bigint);
      END IF;
      n := {unfold_old}(n, now_us);
      IF marks[i] > 0 THEN
        n.marked := greatest(n.marked, now_us + marks[i]);
      END IF;
      IF n IS DISTINCT FROM was THEN
        UPDATE {name}
           SET last = n.last, taken = n.taken, held = n.held, line = n.line,
               oldest = n.oldest, front = n.front, opens = n.opens, used = n.used, marked = n.marked, solo = n.solo
         WHERE name = n.name;
      END IF;
    END IF;
    IF marks[i] > 0 THEN
      INSERT INTO {mark} AS m (id, until) VALUES (ids[i], now_us + marks[i])
      ON CONFLICT (id) DO UPDATE SET until = greatest(m.until, excluded.until);
    END IF;
    answer := answer || ARRAY[CASE WHEN was_there THEN 0 ELSE 2 END, now_us];
  END LOOP;
  RETURN answer;
END $$;

-- The same for one claim. Whoever is alone inside takes the short way.
CREATE OR REPLACE FUNCTION {end_one}(of_name text, of_id uuid, min_hold bigint, mark bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
  now_us CONSTANT bigint := {clock}();
  waiters integer;
  first bigint;
BEGIN
  UPDATE {name}
     SET taken = 0, held = 0, opens = 9223372036854775807, used = now_us, solo = NULL
   WHERE name = of_name AND (solo).id = of_id AND min_hold = 0 AND mark = 0
     AND pg_catalog.pg_try_advisory_xact_lock_shared({key}(of_name))
  RETURNING line, front INTO waiters, first;
  IF NOT FOUND THEN
    RETURN {end}(ARRAY[of_name], ARRAY[of_id], ARRAY[min_hold], ARRAY[mark]);
  ELSIF waiters > 0 THEN
    RETURN ARRAY[0, {hand_over}(of_name, first)];
  END IF;
  RETURN ARRAY[0, now_us];
END $$;

-- Hands a name over that nobody is inside of, and that the caller has just written. Gives the time.
--
-- What the sweep does, in half of its statements: the first in line is alive nearly always, and takes all there is. Whoever is next waits
-- for each of them, and they cost three times of what they do in a row. If it is otherwise, or the one behind it is dead, the sweep goes on.
CREATE OR REPLACE FUNCTION {hand_over}(of_name text, first bigint) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_sort = off AS $$
DECLARE
  now_us CONSTANT bigint := {clock}();
  n {name};
  t record;
  given bigint;
  behind integer;
  is_done boolean;
BEGIN
  DELETE FROM {ticket} w
   USING (
     SELECT h.id FROM {ticket} h
      WHERE h.name = of_name AND h.waiting AND h.seq >= first
      ORDER BY h.seq
      LIMIT 1
   ) AS head, {client} c LEFT JOIN {notify_key} k ON k.client = c.client
   WHERE w.id = head.id AND c.client = w.client AND c.alive > now_us AND w.take = w.room
  RETURNING w.*, now_us + w.handover_ttl + w.lock_delay AS ends, c.listens, k.key INTO t;
  is_done := FOUND;
  IF is_done THEN
    UPDATE {name}
       SET last = greatest(last + 1, now_us), taken = t.take, held = 1, line = line - 1, oldest = t.seq, front = t.seq + 1,
           opens = t.ends, used = now_us,
           solo = ROW(
             t.id, of_name, t.seq, false, false, t.mode, t.take, t.room, t.client, t.ttl, t.handover_ttl, t.lock_delay, now_us,
             greatest(last + 1, now_us), t.ends, t.pid, t.host, t.note, NULL, NULL, NULL
           )::{ticket}
     WHERE name = of_name
    RETURNING last, line INTO given, behind;
    IF t.listens THEN
      PERFORM {announce}(t.client, t.key, t.id, given, now_us);
    END IF;
    is_done := behind = 0 OR (
      SELECT coalesce(c.alive, 0) > now_us FROM {ticket} h LEFT JOIN {client} c ON c.client = h.client
       WHERE h.name = of_name AND h.waiting AND h.seq > t.seq
       ORDER BY h.seq
       LIMIT 1
    );
  END IF;
  IF NOT is_done THEN
    SELECT * INTO n FROM {name} WHERE name = of_name;
    PERFORM {put}({sweep}(n, now_us, NULL::bigint));
  END IF;
  RETURN now_us;
END $$;
