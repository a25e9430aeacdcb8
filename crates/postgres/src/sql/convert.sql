-- convert: changes the mode of a hold in place. A writer becomes a reader at any time and lets other readers in; a reader
-- becomes the writer only while it is alone inside, and gets a new token. A request that comes so late that the hold has
-- another token by now changes nothing.
--
-- Gives the time, and if it could be had the token and what is left of the window.
CREATE OR REPLACE FUNCTION {convert}(
  of_name text, of_id uuid, to_mode smallint, to_take bigint, to_room bigint, known bigint
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  n {name};
  was {name};
  t {ticket};
  now_us bigint;
  up boolean;
  down boolean;
  answer bigint[];
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared({key}(of_name)) THEN
    -- Whoever has it found no hold; or is about to find ours, and to let go again.
    IF EXISTS (
      SELECT FROM {ticket} WHERE id = of_id AND name = of_name AND NOT waiting AND NOT closing AND expires > {clock}()
    ) OR EXISTS (SELECT FROM {name} WHERE name = of_name AND (solo).id = of_id AND opens > {clock}()) THEN
      RAISE lock_not_available; -- tried again
    END IF;
    RETURN ARRAY[{clock}()];
  END IF;
  SELECT * INTO n FROM {name} WHERE name = of_name FOR UPDATE;
  IF NOT FOUND THEN
    RETURN ARRAY[{clock}()];
  END IF;
  was := n;
  now_us := {clock}();
  answer := ARRAY[now_us];
  n := {unfold}({sweep}(n, now_us, NULL));
  SELECT * INTO t FROM {ticket} WHERE id = of_id AND name = of_name AND NOT waiting AND NOT closing;
  IF FOUND THEN
    down := t.token = known AND t.mode = 0 AND to_mode = 1;
    -- Also if it is the writer still: a downgrade was asked for, has not come, and must do nothing if it does. And a reader
    -- that came later and has gone may have shown a higher token than ours to the resource.
    up := t.token = known AND t.mode IN (0, 1) AND to_mode = 0 AND n.held = 1;
    IF down OR up OR (t.mode, t.take, t.room) = (to_mode, to_take, to_room) THEN
      IF up THEN
        n.last := greatest(n.last + 1, now_us);
        t.token := n.last;
      END IF;
      n.taken := n.taken - t.take + to_take;
      t.expires := now_us + t.ttl + t.lock_delay; -- the grant that comes of it has a whole window
      UPDATE {ticket} SET mode = to_mode, take = to_take, room = to_room, token = t.token, expires = t.expires WHERE id = of_id;
      n.opens := least(n.opens, t.expires);
      n.used := now_us;
      n := {sweep}(n, now_us, NULL);
      answer := ARRAY[now_us, t.token, t.ttl];
    END IF;
  END IF;
  IF n IS DISTINCT FROM was THEN
    PERFORM {put}(n);
  END IF;
  RETURN answer;
END $$;
