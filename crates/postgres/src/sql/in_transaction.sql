-- in_transaction: locks a name for the rest of the caller's own transaction, which must have begun. It ends with that, and
-- nothing else ends it.
--
-- It has the name's advisory lock exclusively, so every verb is told "locked" and nobody waits for it; and it writes the
-- name's row after it has seen that nobody holds or waits for the name, so that at REPEATABLE READ and SERIALIZABLE a
-- transaction whose snapshot is older than the last grant fails here (40001), and never holds beside somebody else.
--
-- `milliseconds`: how long to wait for another transaction; 0 not at all, -1 for ever.
-- Gives the token; 0 if the name is leased, or somebody in line is next; -1 if another transaction has it. Then nothing is
-- locked and nothing was written.
CREATE OR REPLACE FUNCTION {in_transaction}(of_name text, milliseconds bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  patience CONSTANT text := current_setting('lock_timeout');
  is_fresh CONSTANT boolean := current_setting('transaction_isolation') LIKE 'read%';
  liveness CONSTANT text := (SELECT s.liveness FROM {setup} s WHERE s.one);
  began CONSTANT bigint := {clock}();
  keys bigint[] := ARRAY[{key}(of_name)];
  n {name};
  now_us bigint;
  k bigint;
BEGIN
  -- A look that is in nobody's way, for those who come again and again. An old snapshot would show the same for ever.
  IF is_fresh AND {is_leased}(of_name) THEN
    RETURN 0;
  END IF;
  IF liveness IS DISTINCT FROM 'lease' THEN
    keys := keys || {lock_key}(of_name);
  END IF;
  BEGIN -- whatever is locked in here is let go of where the answer is no
    FOREACH k IN ARRAY keys LOOP
      IF pg_try_advisory_xact_lock(k) THEN
        CONTINUE;
      ELSIF milliseconds = 0 THEN
        RAISE lock_not_available;
      END IF;
      PERFORM set_config('lock_timeout', CASE
        WHEN milliseconds < 0 THEN 0
        ELSE greatest(milliseconds - ({clock}() - began) / 1000, 1)
      END::text, true);
      PERFORM pg_advisory_xact_lock(k);
    END LOOP;
    PERFORM set_config('lock_timeout', patience, true);
    SELECT * INTO n FROM {name} WHERE name = of_name FOR UPDATE;
    IF NOT FOUND THEN
      n := {enter}(of_name);
    END IF;
    now_us := {clock}();
    IF n.held + n.line > 0 THEN
      n := {sweep}(n, now_us, NULL::bigint);
    END IF;
    IF n.held + n.line > 0 THEN
      RAISE EXCEPTION USING ERRCODE = 'TN002';
    END IF;
    -- Sessions have their tokens from a sequence, which was ahead of the clock when the first of them came. After a crash none may have
    -- come yet.
    IF liveness = 'session' AND {session_is_unseeded}() THEN
      BEGIN -- whoever comes next does not wait for this transaction; and what was set stays
        PERFORM {session_seed}();
        RAISE EXCEPTION USING ERRCODE = 'TN003';
      EXCEPTION WHEN SQLSTATE 'TN003' THEN NULL;
      END;
    END IF;
    n.last := CASE WHEN liveness = 'session' THEN nextval('{token}') ELSE greatest(n.last + 1, now_us) END;
    n.used := now_us;
    PERFORM {put}(n);
    RETURN n.last;
  EXCEPTION
    WHEN lock_not_available THEN
      RETURN -1;
    WHEN SQLSTATE 'TN002' THEN
      RETURN 0;
  END;
END $$;
