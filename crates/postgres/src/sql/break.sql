-- Locks the row of a name, if there is one, and makes a row of every hold, for whoever is about to change them.
CREATE OR REPLACE FUNCTION {grasp}(of_name text) RETURNS {name} LANGUAGE plpgsql AS $$
DECLARE
  n {name};
BEGIN
  IF pg_try_advisory_xact_lock_shared({key}(of_name)) THEN
    SELECT * INTO n FROM {name} WHERE name = of_name FOR UPDATE;
    IF (n.solo).id IS NOT NULL THEN
      n := {unfold}(n);
      PERFORM {put}(n);
    END IF;
  ELSIF {is_leased}(of_name) THEN
    RAISE lock_not_available; -- a transaction is about to find the hold, and to let go again: tried again
  END IF;
  RETURN n;
END $$;

-- request: leaves a request with every holder to let go, and tells them. Gives the time and how many there were.
CREATE OR REPLACE FUNCTION {request}(of_name text, by_pid bigint, by_host text, why text) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n {name};
  t record;
  now_us bigint;
  many bigint := 0;
BEGIN
  n := {grasp}(of_name);
  now_us := {clock}();
  FOR t IN
    UPDATE {ticket} SET asked_pid = by_pid, asked_host = by_host, asked_reason = why
     WHERE name = n.name AND NOT waiting AND NOT closing AND seq >= n.oldest
    RETURNING id, client
  LOOP
    PERFORM {post}(t.client, 0::smallint, t.id, by_pid, by_host, why, now_us);
    many := many + 1;
  END LOOP;
  RETURN ARRAY[now_us, many];
END $$;

-- break: ends holds by force, all or the one with this token, and tells them. To a holder that is a loss, so its lock-delay
-- keeps the name closed; breaking it a second time ends that too. Gives the time and how many there were.
CREATE OR REPLACE FUNCTION {break}(of_name text, only_token bigint) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  n {name};
  t record;
  now_us bigint;
  many bigint := 0;
BEGIN
  n := {grasp}(of_name);
  now_us := {clock}();
  IF n.name IS NULL THEN
    RETURN ARRAY[now_us, 0];
  END IF;
  FOR t IN
    SELECT id, client, closing, lock_delay, take FROM {ticket}
     WHERE name = n.name AND NOT waiting AND seq >= n.oldest AND (only_token IS NULL OR token = only_token)
     ORDER BY seq
  LOOP
    PERFORM {post}(t.client, 1::smallint, t.id, NULL::bigint, NULL::text, NULL::text, now_us);
    many := many + 1;
    IF NOT t.closing AND t.lock_delay > 0 THEN
      UPDATE {ticket}
         SET closing = true, expires = now_us + t.lock_delay, asked_pid = NULL, asked_host = NULL, asked_reason = NULL
       WHERE id = t.id;
      n.opens := least(n.opens, now_us + t.lock_delay);
    ELSE
      DELETE FROM {ticket} WHERE id = t.id;
      n.held := n.held - 1;
      n.taken := n.taken - t.take;
    END IF;
  END LOOP;
  IF n.held = 0 THEN
    n.opens := 9223372036854775807;
  END IF;
  n.used := now_us;
  PERFORM {put}({sweep}(n, now_us, NULL::bigint));
  RETURN ARRAY[now_us, many];
END $$;
