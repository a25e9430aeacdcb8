-- end: ends claims, whatever they were, and hands over to those who may now enter; all in one transaction.
--
-- A hold that is let go before its `min_hold` is over keeps the name closed until then. With a `mark` no request for the
-- claim is granted for so long, however late it comes.
--
-- Gives for each two numbers: 0 if nothing of it is left, 1 if somebody's transaction has the name; and the time.
CREATE OR REPLACE FUNCTION {end}(names text[], ids uuid[], min_holds bigint[], marks bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  e record;
  n {name};
  was {name};
  t record;
  now_us bigint;
  locked boolean;
  answer bigint[] := '{}';
BEGIN
  FOR e IN
    SELECT * FROM unnest(names, ids, min_holds, marks) AS u (name, id, min_hold, mark)
  LOOP
    locked := NOT pg_try_advisory_xact_lock_shared({key}(e.name));
    IF locked THEN
      now_us := {clock}();
      -- Over by time, it is swept by whoever comes next. Else it is in the way of the transaction's end, and must wait.
      IF EXISTS (
        SELECT FROM {ticket} w LEFT JOIN {client} c ON c.client = w.client
         WHERE w.id = e.id AND NOT w.closing AND CASE WHEN w.waiting THEN c.alive > now_us ELSE w.expires > now_us END
      ) THEN
        answer := answer || ARRAY[1, now_us];
        CONTINUE;
      END IF;
    ELSE
      SELECT * INTO n FROM {name} WHERE name = e.name FOR UPDATE;
      locked := NOT FOUND;
      IF locked AND e.mark > 0 THEN
        n := {enter}(e.name); -- so that a late request meets the mark, and not us half-way
        locked := false;
      END IF;
      now_us := {clock}();
    END IF;
    IF NOT locked THEN
      was := n;
      IF n.used = 0 THEN
        n.used := now_us;
      END IF;
      -- A clock that was set back may show less than when the hold began; then it began now.
      IF e.min_hold > 0 THEN
        UPDATE {ticket}
           SET closing = true, expires = least(since, now_us) + e.min_hold,
               asked_pid = NULL, asked_host = NULL, asked_reason = NULL
         WHERE id = e.id AND name = e.name AND NOT waiting AND NOT closing AND expires > now_us
           AND least(since, now_us) + e.min_hold > now_us
        RETURNING expires INTO t;
        IF FOUND THEN
          n.opens := least(n.opens, t.expires);
          n.used := now_us;
        END IF;
      END IF;
      DELETE FROM {ticket} WHERE id = e.id AND name = e.name AND NOT closing RETURNING waiting, take INTO t;
      IF FOUND THEN
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
        n := {sweep}(n, now_us, NULL);
      END IF;
      IF n IS DISTINCT FROM was THEN
        UPDATE {name}
           SET last = n.last, taken = n.taken, held = n.held, line = n.line,
               oldest = n.oldest, front = n.front, opens = n.opens, used = n.used
         WHERE name = n.name;
      END IF;
    END IF;
    IF e.mark > 0 THEN
      INSERT INTO {mark} AS m (id, until) VALUES (e.id, now_us + e.mark)
      ON CONFLICT (id) DO UPDATE SET until = greatest(m.until, excluded.until);
    END IF;
    answer := answer || ARRAY[0, now_us];
  END LOOP;
  RETURN answer;
END $$;
