-- ask: lets claims in, puts them in line, or neither; all in one transaction. They come in the order of their names, as in
-- every verb that locks several, so that two such verbs never wait for each other.
--
-- Asking again with the id of a claim that is already there changes nothing, and answers how it stands.
-- `notify_key`: with what the client can be told; null if it does not listen.
--
-- Gives for each ask four numbers, the last the time at which it was handled:
--   0 granted: token, what is left of its window     1 in line: 1 if at its head, when time alone may let somebody in or -1
--   2 busy    3 locked by somebody's transaction     4 in use otherwise: kind, room    5 ended before
CREATE OR REPLACE FUNCTION {ask}(
  me bigint, notify_key bytea, alive_for bigint,
  names text[], ids uuid[], kinds smallint[], modes smallint[], takes bigint[], rooms bigint[],
  ttls bigint[], handover_ttls bigint[], lock_delays bigint[], notes text[], hosts text[], pids bigint[],
  queues boolean[]
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  heard CONSTANT bigint := CASE WHEN true = ANY (queues) THEN me END;
  n {name};
  was {name};
  t {ticket};
  now_us bigint;
  next bigint;
  idle boolean;
  enters boolean;
  waits boolean := false;
  says bigint[];
  answer bigint[] := '{}';
BEGIN
  FOR i IN 1 .. cardinality(names) LOOP
    IF NOT pg_try_advisory_xact_lock_shared({key}(names[i])) THEN
      answer := answer || ARRAY[3, 0, 0, {clock}()];
      CONTINUE;
    END IF;
    SELECT * INTO n FROM {name} WHERE name = names[i] FOR UPDATE;
    IF NOT FOUND THEN
      n := {enter}(names[i]);
    END IF;
    was := n;
    now_us := {clock}();
    IF n.opens <= now_us OR n.line > 0 THEN
      n := {sweep}(n, now_us, heard);
    END IF;
    idle := n.held + n.line = 0;
    t := n.solo;
    IF t.id IS DISTINCT FROM ids[i] AND NOT idle THEN
      SELECT * INTO t FROM {ticket} WHERE id = ids[i];
    END IF;
    n := {unfold_old}(n, now_us);
    IF t.id IS NOT NULL THEN
      says := CASE
        WHEN t.closing THEN ARRAY[2, 0, 0]
        WHEN t.waiting THEN ARRAY[1] || {standing}(n, t.seq, now_us)
        ELSE ARRAY[0, t.token, t.expires - t.lock_delay - now_us]
      END;
    ELSIF NOT idle AND (n.kind <> kinds[i] OR (modes[i] = 2 AND n.room <> rooms[i])) THEN
      says := ARRAY[4, n.kind, n.room];
    ELSE
      enters := n.line = 0 AND n.taken + takes[i] <= rooms[i];
      IF NOT enters AND NOT queues[i] THEN
        says := ARRAY[2, 0, 0];
      ELSE
        next := greatest(n.last + 1, now_us);
        t := ROW(
          ids[i], names[i], n.number + 1, NOT enters, false, modes[i], takes[i], rooms[i], me, ttls[i], handover_ttls[i],
          lock_delays[i], now_us, CASE WHEN enters THEN next END, CASE WHEN enters THEN now_us + ttls[i] + lock_delays[i] END,
          pids[i], hosts[i], notes[i], NULL, NULL, NULL
        );
        IF EXISTS (SELECT FROM {mark} WHERE id = ids[i] AND until > now_us) THEN
          says := ARRAY[5, 0, 0];
        ELSE
          IF idle AND enters THEN
            n.solo := t;
          ELSE
            IF enters THEN
              n := {unfold}(n);
            END IF;
            INSERT INTO {ticket} SELECT t.*;
          END IF;
          n.number := n.number + 1;
          n.used := now_us;
          IF idle THEN
            n.kind := kinds[i]; -- nobody was there: the newcomer decides
            n.room := rooms[i];
          END IF;
          IF enters THEN
            IF n.held = 0 THEN
              n.oldest := n.number;
            END IF;
            n.last := next;
            n.held := n.held + 1;
            n.taken := n.taken + takes[i];
            n.opens := least(n.opens, now_us + ttls[i] + lock_delays[i]);
            says := ARRAY[0, n.last, ttls[i]];
          ELSE
            IF n.line = 0 THEN
              n.front := n.number;
            END IF;
            n.line := n.line + 1;
            waits := true;
            says := ARRAY[1] || {standing}(n, n.number, now_us);
          END IF;
        END IF;
      END IF;
    END IF;
    answer := answer || says || now_us;
    IF n IS DISTINCT FROM was THEN
      UPDATE {name}
         SET kind = n.kind, room = n.room, last = n.last, number = n.number, taken = n.taken, held = n.held, line = n.line,
             oldest = n.oldest, front = n.front, opens = n.opens, used = n.used, solo = n.solo
       WHERE name = n.name;
    ELSIF n.used = 0 THEN
      DELETE FROM {name} WHERE name = n.name; -- it was made for this
    END IF;
  END LOOP;
  IF waits THEN
    PERFORM {hear}(me, notify_key, alive_for, now_us, alive_for * 3 / 4);
  END IF;
  RETURN answer;
END $$;

-- The same for one claim. For a name that is idle it takes the short way: no time that passes while it waits for the name's row
-- matters to anybody then, so that row need not be locked before it is written. It is the one that is called most, so it is
-- spared the settings that the others have: they cost as much as a statement.
CREATE OR REPLACE FUNCTION {ask_one}(
  me bigint, notify_key bytea, alive_for bigint, of_name text, of_id uuid, of_kind smallint, of_mode smallint, of_take bigint,
  of_room bigint, of_ttl bigint, of_handover_ttl bigint, of_lock_delay bigint, of_note text, of_host text, of_pid bigint,
  queues boolean
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  now_us CONSTANT bigint := {clock}();
  ends CONSTANT bigint := now_us + of_ttl + of_lock_delay;
  token bigint;
BEGIN
  UPDATE {name}
     SET kind = of_kind, room = of_room, last = greatest(last + 1, now_us), number = number + 1, taken = of_take, held = 1,
         oldest = number + 1, opens = ends, used = now_us,
         solo = ROW(
           of_id, of_name, number + 1, false, false, of_mode, of_take, of_room, me, of_ttl, of_handover_ttl, of_lock_delay, now_us,
           greatest(last + 1, now_us), ends, of_pid, of_host, of_note, NULL, NULL, NULL
         )::{ticket}
   WHERE name = of_name AND held = 0 AND line = 0 AND of_take <= of_room AND marked < now_us
     AND pg_catalog.pg_try_advisory_xact_lock_shared({key}(of_name))
  RETURNING last INTO token;
  IF FOUND THEN
    RETURN ARRAY[0, token, of_ttl, now_us];
  END IF;
  RETURN {ask}(
    me, notify_key, alive_for, ARRAY[of_name], ARRAY[of_id], ARRAY[of_kind], ARRAY[of_mode], ARRAY[of_take], ARRAY[of_room],
    ARRAY[of_ttl], ARRAY[of_handover_ttl], ARRAY[of_lock_delay], ARRAY[of_note], ARRAY[of_host], ARRAY[of_pid],
    ARRAY[queues]
  );
END $$;

-- Where a waiter stands: 1 if at the head of the line, and then when time alone may let somebody in; -1 for never.
CREATE OR REPLACE FUNCTION {standing}(n {name}, place bigint, now_us bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM {ticket} WHERE name = n.name AND waiting AND seq >= n.front AND seq < place) THEN
    RETURN ARRAY[0, -1];
  END IF;
  IF (n.solo).id IS NOT NULL THEN
    RETURN ARRAY[1, greatest(n.opens - now_us, 0)];
  END IF;
  RETURN ARRAY[1, coalesce((
    SELECT min(greatest(expires - now_us, 0)) FROM {ticket} WHERE name = n.name AND NOT waiting AND seq >= n.oldest
  ), -1)];
END $$;

-- A client was heard: its waiters are alive from now on. Nothing is written while they are for `enough`. Comes after all
-- names of a verb, so that two verbs of one client do not wait for each other.
CREATE OR REPLACE FUNCTION {hear}(
  me bigint, notify_key bytea, alive_for bigint, now_us bigint, enough bigint
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  is_listening CONSTANT boolean := notify_key IS NOT NULL;
BEGIN
  IF EXISTS (SELECT FROM {client} WHERE client = me AND alive >= now_us + enough AND listens >= is_listening) THEN
    RETURN;
  END IF;
  INSERT INTO {client} AS c (client, alive, listens) VALUES (me, now_us + alive_for, is_listening)
  ON CONFLICT (client) DO UPDATE
     SET alive = excluded.alive, listens = c.listens OR excluded.listens;
  IF is_listening THEN
    INSERT INTO {notify_key} (client, key) VALUES (me, notify_key) ON CONFLICT DO NOTHING;
  END IF;
END $$;
