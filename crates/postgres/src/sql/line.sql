-- What the verbs share. tenure's `core::record` says what it means; this does the same, and a test holds it to that.

-- Whatever the search path of whoever calls has: a verb either sets its own, or, where a hand-over would wait for that, names every operator
-- and function so that none but PostgreSQL's own can be meant, by its schema or since no other could fit better.

-- The server's clock.
CREATE OR REPLACE FUNCTION {clock}() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000::numeric)::bigint $$;

-- The advisory lock of a name. A verb has it shared while it runs and never waits for it; whoever locks a name in a
-- transaction of its own has it exclusively for as long as that takes. Two names may have the same one: then a verb is told
-- once in a while that a name is locked which is not, and comes again.
CREATE OR REPLACE FUNCTION {key}(of_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT pg_catalog.hashtextextended('{SCHEMA}.{PREFIX}/' || of_name, 2::bigint) $$;

-- The channel that a client listens to.
CREATE OR REPLACE FUNCTION {channel}(of_client bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT '{PREFIX}' || pg_catalog.lpad(pg_catalog.to_hex(of_client), 16, '0'::text) $$;

-- Tells a client that it was let in. Anybody can send such a message, and hear this one: so it bears a seal, which others cannot make.
-- A client that has left no key yet looks after its claim all the same.
CREATE OR REPLACE FUNCTION {announce}(to_client bigint, notify_key bytea, id uuid, token bigint, now_us bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  said CONSTANT text := 'granted ' || id::text || ' ' || token::text || ' ' || now_us::text;
BEGIN
  PERFORM pg_catalog.pg_notify({channel}(to_client), said || coalesce(' ' || pg_catalog.encode(
    pg_catalog.substr(pg_catalog.sha256(notify_key || pg_catalog.convert_to(said, 'UTF8')), 1, 16), 'hex'
  ), ''));
END $$;

-- The floor as it is now, for whoever has its own row already: nobody removes that any more, so no later floor concerns it.
-- A transaction with an old snapshot would read an old one: there it is locked, so that whoever comes after a change is told to
-- begin anew. Only for a moment: somebody's own transaction may last for hours, and whoever removes anything waits for the floor.
CREATE OR REPLACE FUNCTION {lowest}() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  lowest bigint;
BEGIN
  IF current_setting('transaction_isolation') LIKE 'read%' THEN
    SELECT value INTO lowest FROM {floor} WHERE one;
    RETURN lowest;
  END IF;
  BEGIN -- what is locked in here is let go of with it
    SELECT value INTO lowest FROM {floor} WHERE one FOR SHARE;
    RAISE EXCEPTION USING ERRCODE = 'TN003';
  EXCEPTION WHEN SQLSTATE 'TN003' THEN
    RETURN lowest;
  END;
END $$;

-- Makes the row of a name, or locks it where somebody was faster. A row that `used` shows as 0 was made just now: the caller writes it
-- back, with its last token, or removes it.
CREATE OR REPLACE FUNCTION {enter}(of_name text) RETURNS {name} LANGUAGE plpgsql AS $$
DECLARE
  n {name};
BEGIN
  LOOP
    -- Any mark there is may be about this name; those that come later are written into the row.
    INSERT INTO {name} (name, marked) VALUES (of_name, coalesce((SELECT max(until) FROM {mark}), 0))
    ON CONFLICT DO NOTHING RETURNING * INTO n;
    IF FOUND THEN
      n.last := {lowest}(); -- whoever removed this name while we waited to make it has raised the floor
      RETURN n;
    END IF;
    SELECT * INTO n FROM {name} WHERE name = of_name FOR UPDATE;
    IF FOUND THEN
      RETURN n;
    END IF;
  END LOOP;
END $$;

-- Writes the row of a name back.
CREATE OR REPLACE FUNCTION {put}(n {name}) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE {name}
     SET kind = n.kind, room = n.room, last = n.last, number = n.number, taken = n.taken, held = n.held, line = n.line,
         oldest = n.oldest, front = n.front, opens = n.opens, used = n.used, marked = n.marked, solo = n.solo
   WHERE name = n.name;
END $$;

-- Makes a row of the ticket of whoever is alone inside, for whoever comes in beside it or changes it. The caller has the name's row locked, and writes it back.
CREATE OR REPLACE FUNCTION {unfold}(INOUT n {name}) LANGUAGE plpgsql AS $$
BEGIN
  IF (n.solo).id IS NOT NULL THEN
    INSERT INTO {ticket} SELECT (n.solo).*;
    n.solo := NULL;
  END IF;
END $$;

-- The same once it has been there for a while; its first renewal is due at a third of a hand-over's window or later. Whoever renews
-- waits for nobody, and where others are at the name's row all the time it would never find it free.
CREATE OR REPLACE FUNCTION {unfold_old}(INOUT n {name}, now_us bigint) LANGUAGE plpgsql AS $$
BEGIN
  IF abs(now_us - (n.solo).since) > least((n.solo).handover_ttl, 2000000) / 8 THEN
    n := {unfold}(n);
  END IF;
END $$;

-- Whether somebody holds a name, or keeps it closed. It locks nothing.
CREATE OR REPLACE FUNCTION {is_leased}(of_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (SELECT FROM {ticket} WHERE name = of_name AND NOT waiting AND expires > {clock}())
      OR EXISTS (SELECT FROM {name} WHERE name = of_name AND (solo).id IS NOT NULL AND opens > {clock}());
END $$;

-- Drops what time has ended and lets in who may now enter. It walks from the front to the first live waiter that must stay,
-- so it costs what it changes and not what waits. The caller has the name's row locked, and writes it back.
-- The waiters of `heard`, if it is not null, are alive whatever their client's row says: it is being heard just now.
-- A server that has not counted the rows lately would take them all and sort them; it must walk the index.
CREATE OR REPLACE FUNCTION {sweep}(INOUT n {name}, now_us bigint, heard bigint)
LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
  gone integer;
  freed bigint;
  t record;
  alone {ticket};
  many integer;
BEGIN
  IF n.opens <= now_us AND (n.solo).id IS NOT NULL THEN
    n.solo := NULL;
    n.held := 0;
    n.taken := 0;
    n.opens := 9223372036854775807;
  ELSIF n.opens <= now_us THEN
    -- A renewal that was under way is waited for here, and then keeps its ticket.
    WITH dropped AS (
      DELETE FROM {ticket}
       WHERE name = n.name AND NOT waiting AND seq >= n.oldest AND expires <= now_us
      RETURNING take
    )
    SELECT count(*), coalesce(sum(take), 0) INTO gone, freed FROM dropped;
    n.held := n.held - gone;
    n.taken := n.taken - freed;
    SELECT coalesce(min(expires), 9223372036854775807), coalesce(min(seq), n.oldest) INTO n.opens, n.oldest
      FROM {ticket} WHERE name = n.name AND NOT waiting AND seq >= n.oldest;
  END IF;
  WHILE n.line > 0 LOOP
    many := 0;
    FOR t IN
      SELECT w.id, w.seq, w.take, w.room, w.client, w.handover_ttl, w.lock_delay, c.alive, c.listens, k.key
        FROM {ticket} w LEFT JOIN {client} c ON c.client = w.client LEFT JOIN {notify_key} k ON k.client = w.client
       WHERE w.name = n.name AND w.waiting AND w.seq >= n.front
       ORDER BY w.seq
       LIMIT 4
    LOOP
      many := many + 1;
      IF coalesce(t.alive, 0) <= now_us AND t.client IS DISTINCT FROM heard THEN
        DELETE FROM {ticket} WHERE id = t.id;
      ELSIF n.taken + t.take > t.room THEN
        n.front := t.seq;
        RETURN;
      ELSE
        n.last := greatest(n.last + 1, now_us);
        IF n.held = 0 AND t.take = t.room THEN -- nobody fits beside it
          DELETE FROM {ticket} WHERE id = t.id RETURNING * INTO alone;
          alone.waiting := false;
          alone.token := n.last;
          alone.since := now_us;
          alone.expires := now_us + t.handover_ttl + t.lock_delay;
          n.solo := alone;
        ELSE
          n := {unfold}(n);
          UPDATE {ticket}
             SET waiting = false, token = n.last, since = now_us, expires = now_us + t.handover_ttl + t.lock_delay
           WHERE id = t.id;
        END IF;
        IF n.held = 0 THEN
          n.oldest := t.seq;
        END IF;
        n.held := n.held + 1;
        n.taken := n.taken + t.take;
        n.opens := least(n.opens, now_us + t.handover_ttl + t.lock_delay);
        IF coalesce(t.listens, true) THEN -- it may be so new that it has no row yet
          PERFORM {announce}(t.client, t.key, t.id, n.last, now_us);
        END IF;
      END IF;
      n.line := n.line - 1;
      n.front := t.seq + 1;
    END LOOP;
    EXIT WHEN many = 0;
  END LOOP;
END $$;

-- Leaves a message for a client, and tells it that there is one.
CREATE OR REPLACE FUNCTION {post}(
  to_client bigint, what smallint, about uuid, by_pid bigint, by_host text, why text, now_us bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {mail} (client, says, id, pid, host, reason, until)
  VALUES (to_client, what, about, by_pid, by_host, why, now_us + 10000000);
  PERFORM pg_catalog.pg_notify({channel}(to_client), 'mail');
END $$;
