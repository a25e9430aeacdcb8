-- ask: lets claims in, puts them in line, or neither; all in one transaction. They come in the order of their names, as in
-- every verb that locks several, so that two such verbs never wait for each other.
--
-- Asking again with the id of a claim that is already there changes nothing, and answers how it stands.
-- `good_until`: a request that comes later than this does nothing; null if it is good at any time.
--
-- Gives for each ask four numbers, the last the time at which it was handled:
--   0 granted: token, what is left of its window     1 in line: 1 if at its head, when time alone may let somebody in or -1
--   2 busy    3 locked by somebody's transaction     4 in use otherwise: kind, room    5 late    6 ended before
CREATE OR REPLACE FUNCTION {ask}(
  me bigint, is_listening boolean, alive_for bigint,
  names text[], ids uuid[], kinds smallint[], modes smallint[], takes bigint[], rooms bigint[],
  ttls bigint[], handover_ttls bigint[], lock_delays bigint[], notes text[], hosts text[], pids bigint[],
  queues boolean[], good_untils bigint[]
) RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  heard CONSTANT bigint := CASE WHEN true = ANY (queues) THEN me END;
  a record;
  n {name};
  was {name};
  t {ticket};
  now_us bigint;
  enters boolean;
  waits boolean := false;
  says bigint[];
  answer bigint[] := '{}';
BEGIN
  FOR a IN
    SELECT * FROM unnest(names, ids, kinds, modes, takes, rooms, ttls, handover_ttls, lock_delays, notes, hosts, pids, queues, good_untils)
      AS u (name, id, kind, mode, take, room, ttl, handover_ttl, lock_delay, note, host, pid, queue, good_until)
  LOOP
    IF NOT pg_try_advisory_xact_lock_shared({key}(a.name)) THEN
      answer := answer || ARRAY[3, 0, 0, {clock}()];
      CONTINUE;
    END IF;
    SELECT * INTO n FROM {name} WHERE name = a.name FOR UPDATE;
    IF NOT FOUND THEN
      n := {enter}(a.name);
    END IF;
    was := n;
    now_us := {clock}();
    IF a.good_until < now_us THEN
      says := ARRAY[5, 0, 0];
    ELSE
      IF n.opens <= now_us OR n.line > 0 THEN
        n := {sweep}(n, now_us, heard);
      END IF;
      t := NULL;
      IF n.held + n.line > 0 THEN
        SELECT * INTO t FROM {ticket} WHERE id = a.id;
      END IF;
      IF t.id IS NOT NULL THEN
        says := CASE
          WHEN t.closing THEN ARRAY[2, 0, 0]
          WHEN t.waiting THEN ARRAY[1] || {standing}(n, t.seq, now_us)
          ELSE ARRAY[0, t.token, t.expires - t.lock_delay - now_us]
        END;
      ELSIF n.held + n.line > 0 AND (n.kind <> a.kind OR (a.mode = 2 AND n.room <> a.room)) THEN
        says := ARRAY[4, n.kind, n.room];
      ELSE
        enters := n.line = 0 AND n.taken + a.take <= a.room;
        IF NOT enters AND NOT a.queue THEN
          says := ARRAY[2, 0, 0];
        ELSE
          INSERT INTO {ticket} (id, name, seq, waiting, mode, take, room, client, ttl, handover_ttl, lock_delay, since,
                                token, expires, pid, host, note)
          SELECT a.id, a.name, n.number + 1, NOT enters, a.mode, a.take, a.room, me, a.ttl, a.handover_ttl, a.lock_delay, now_us,
                 CASE WHEN enters THEN greatest(n.last + 1, now_us) END,
                 CASE WHEN enters THEN now_us + a.ttl + a.lock_delay END, a.pid, a.host, a.note
           WHERE NOT EXISTS (SELECT FROM {mark} WHERE id = a.id AND until > now_us)
          ON CONFLICT DO NOTHING;
          IF NOT FOUND THEN
            says := ARRAY[6, 0, 0];
          ELSE
            n.number := n.number + 1;
            n.used := now_us;
            IF n.held + n.line = 0 THEN
              n.kind := a.kind; -- nobody was there: the newcomer decides
              n.room := a.room;
            END IF;
            IF enters THEN
              IF n.held = 0 THEN
                n.oldest := n.number;
              END IF;
              n.last := greatest(n.last + 1, now_us);
              n.held := n.held + 1;
              n.taken := n.taken + a.take;
              n.opens := least(n.opens, now_us + a.ttl + a.lock_delay);
              says := ARRAY[0, n.last, a.ttl];
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
    END IF;
    answer := answer || says || now_us;
    IF n IS DISTINCT FROM was THEN
      UPDATE {name}
         SET kind = n.kind, room = n.room, last = n.last, number = n.number, taken = n.taken, held = n.held, line = n.line,
             oldest = n.oldest, front = n.front, opens = n.opens, used = n.used
       WHERE name = n.name;
    ELSIF n.used = 0 THEN
      DELETE FROM {name} WHERE name = n.name; -- it was made for this
    END IF;
  END LOOP;
  IF waits THEN
    PERFORM {hear}(me, is_listening, alive_for, now_us, alive_for * 3 / 4);
  END IF;
  RETURN answer;
END $$;

-- Where a waiter stands: 1 if at the head of the line, and then when time alone may let somebody in; -1 for never.
CREATE OR REPLACE FUNCTION {standing}(n {name}, place bigint, now_us bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM {ticket} WHERE name = n.name AND waiting AND seq >= n.front AND seq < place) THEN
    RETURN ARRAY[0, -1];
  END IF;
  RETURN ARRAY[1, coalesce((
    SELECT min(greatest(expires - now_us, 0)) FROM {ticket} WHERE name = n.name AND NOT waiting AND seq >= n.oldest
  ), -1)];
END $$;

-- A client was heard: its waiters are alive from now on. Nothing is written while they are for `enough`. Comes after all
-- names of a verb, so that two verbs of one client do not wait for each other.
CREATE OR REPLACE FUNCTION {hear}(
  me bigint, is_listening boolean, alive_for bigint, now_us bigint, enough bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM {client} WHERE client = me AND alive >= now_us + enough AND listens >= is_listening) THEN
    RETURN;
  END IF;
  INSERT INTO {client} AS c (client, alive, listens) VALUES (me, now_us + alive_for, is_listening)
  ON CONFLICT (client) DO UPDATE
     SET alive = excluded.alive, listens = c.listens OR excluded.listens;
END $$;
