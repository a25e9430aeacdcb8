-- downgrade: makes a reader of the writer that holds an rw lock, and lets other readers in. It
-- keeps its token and its window. A reader stays a reader, so that a copy which arrives late
-- changes nothing.
--
-- Gives the time, and 1; or 0 if it is not held any more.
CREATE OR REPLACE FUNCTION {downgrade}(of_name text, of_id uuid) RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  n {name};
  was {name};
  t {ticket};
  now_us bigint;
  reads bigint := 0;
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared({key}(of_name)) THEN
    -- Whoever has it found no hold; or is about to find ours, and to let go again.
    IF EXISTS (
      SELECT FROM {ticket} WHERE id = of_id AND name = of_name AND NOT waiting AND NOT closing AND expires > {clock}()
    ) OR EXISTS (SELECT FROM {name} WHERE name = of_name AND (solo).id = of_id AND opens > {clock}()) THEN
      RAISE lock_not_available; -- tried again
    END IF;
    RETURN ARRAY[{clock}(), 0];
  END IF;
  SELECT * INTO n FROM {name} WHERE name = of_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN ARRAY[{clock}(), 0];
  END IF;
  was := n;
  now_us := {clock}();
  n := {unfold}({sweep}(n, now_us, NULL::bigint));
  SELECT * INTO t FROM {ticket} WHERE id = of_id AND name = of_name AND NOT waiting AND NOT closing AND mode IN (0, 1);
  IF FOUND THEN
    reads := 1;
    IF t.mode = 0 THEN
      UPDATE {ticket} SET mode = 1, take = 1 WHERE id = of_id;
      n.taken := n.taken - t.take + 1;
      n.used := now_us;
      n := {sweep}(n, now_us, NULL::bigint);
    END IF;
  END IF;
  IF n IS DISTINCT FROM was THEN
    PERFORM {put}(n);
  END IF;
  RETURN ARRAY[now_us, reads];
END $$;
