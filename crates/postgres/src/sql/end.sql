-- end: ends claims, whatever they were, and hands over to those who may now enter; all in one transaction.
--
-- A hold that is let go before its `min_hold` is over keeps the name closed until then. With a `mark` no request for the
-- claim is granted for so long, however late it comes.
--
-- Gives for each two numbers: 0 if nothing of it is left, 1 if somebody's transaction has the name; and the time.
CREATE OR REPLACE FUNCTION {end}(names text[], ids uuid[], min_holds bigint[], marks bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  n {name};
  was {name};
  t record;
  now_us bigint;
  locked boolean;
  answer bigint[] := '{}';
BEGIN
  FOR i IN 1 .. cardinality(names) LOOP
    locked := NOT pg_try_advisory_xact_lock_shared({key}(names[i]));
    IF locked THEN
      now_us := {clock}();
      -- Over by time, it is swept by whoever comes next. Else it is in the way of the transaction's end, and must wait.
      IF EXISTS (
        SELECT FROM {ticket} w LEFT JOIN {client} c ON c.client = w.client
         WHERE w.id = ids[i] AND NOT w.closing AND CASE WHEN w.waiting THEN c.alive > now_us ELSE w.expires > now_us END
      ) THEN
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
      IF n.used = 0 THEN
        n.used := now_us;
      END IF;
      -- A clock that was set back may show less than when the hold began; then it began now.
      IF min_holds[i] > 0 THEN
        UPDATE {ticket}
           SET closing = true, expires = least(since, now_us) + min_holds[i],
               asked_pid = NULL, asked_host = NULL, asked_reason = NULL
         WHERE id = ids[i] AND name = names[i] AND NOT waiting AND NOT closing AND expires > now_us
           AND least(since, now_us) + min_holds[i] > now_us
        RETURNING expires INTO t;
        IF FOUND THEN
          n.opens := least(n.opens, t.expires);
          n.used := now_us;
        END IF;
      END IF;
      DELETE FROM {ticket} WHERE id = ids[i] AND name = names[i] AND NOT closing RETURNING waiting, take INTO t;
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
    IF marks[i] > 0 THEN
      INSERT INTO {mark} AS m (id, until) VALUES (ids[i], now_us + marks[i])
      ON CONFLICT (id) DO UPDATE SET until = greatest(m.until, excluded.until);
    END IF;
    answer := answer || ARRAY[0, now_us];
  END LOOP;
  RETURN answer;
END $$;

-- The same for one claim. A holder that is there alone takes the short way.
CREATE OR REPLACE FUNCTION {end_one}(of_name text, of_id uuid, min_hold bigint, mark bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
  now_us CONSTANT bigint := {clock}();
BEGIN
  UPDATE {name}
     SET taken = 0, held = 0, opens = 9223372036854775807, used = now_us
   WHERE name = of_name AND held = 1 AND line = 0 AND min_hold = 0 AND mark = 0
     AND EXISTS (SELECT FROM {ticket} WHERE id = of_id AND name = of_name AND NOT waiting AND NOT closing)
     AND pg_catalog.pg_try_advisory_xact_lock_shared({key}(of_name));
  IF FOUND THEN
    DELETE FROM {ticket} WHERE id = of_id AND name = of_name AND NOT closing;
    IF FOUND THEN
      RETURN ARRAY[0, now_us];
    END IF;
    PERFORM {recount}(of_name); -- while we waited for the row, the name became another's
  END IF;
  RETURN {end}(ARRAY[of_name], ARRAY[of_id], ARRAY[min_hold], ARRAY[mark]);
END $$;
