-- What the verbs share. tenure's `core::record` says what it means; this does the same, and a test holds it to that.

-- The server's clock.
CREATE OR REPLACE FUNCTION {clock}() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The advisory lock of a name. A verb has it shared while it runs and never waits for it; whoever locks a name in a
-- transaction of its own has it exclusively for as long as that takes. Two names may have the same one: then a verb is told
-- once in a while that a name is locked which is not, and comes again.
CREATE OR REPLACE FUNCTION {key}(of_name text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtextextended('{SCHEMA}.{PREFIX}/' || of_name, 2) $$;

-- The channel that a client listens to.
CREATE OR REPLACE FUNCTION {channel}(of_client bigint) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT '{PREFIX}' || lpad(to_hex(of_client), 16, '0') $$;

-- The floor as it is now. A transaction with an old snapshot would read an old one: there it is locked, so that whoever comes
-- after a change is told to begin anew.
CREATE OR REPLACE FUNCTION {lowest}() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  lowest bigint;
BEGIN
  IF current_setting('transaction_isolation') = 'read committed' THEN
    SELECT value INTO lowest FROM {floor} WHERE one;
  ELSE
    SELECT value INTO lowest FROM {floor} WHERE one FOR SHARE;
  END IF;
  RETURN lowest;
END $$;

-- Makes the row of a name, or locks it where somebody was faster. A row that `used` shows as 0 was made just now.
CREATE OR REPLACE FUNCTION {enter}(of_name text) RETURNS {name} LANGUAGE plpgsql AS $$
DECLARE
  n {name};
  top bigint;
BEGIN
  LOOP
    INSERT INTO {name} (name, last) VALUES (of_name, {lowest}()) ON CONFLICT DO NOTHING RETURNING * INTO n;
    IF FOUND THEN
      -- Whoever removed this name while we waited to make it has raised the floor.
      UPDATE {name} SET last = value FROM {floor} WHERE one AND name = of_name AND last < value RETURNING value INTO top;
      n.last := coalesce(top, n.last);
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
         oldest = n.oldest, front = n.front, opens = n.opens, used = n.used
   WHERE name = n.name;
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
  many integer;
BEGIN
  IF n.opens <= now_us THEN
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
      SELECT w.id, w.seq, w.take, w.room, w.client, w.handover_ttl, w.lock_delay, c.alive, c.listens
        FROM {ticket} w LEFT JOIN {client} c ON c.client = w.client
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
        UPDATE {ticket}
           SET waiting = false, token = n.last, since = now_us, expires = now_us + t.handover_ttl + t.lock_delay
         WHERE id = t.id;
        IF n.held = 0 THEN
          n.oldest := t.seq;
        END IF;
        n.held := n.held + 1;
        n.taken := n.taken + t.take;
        n.opens := least(n.opens, now_us + t.handover_ttl + t.lock_delay);
        IF coalesce(t.listens, true) THEN -- it may be so new that it has no row yet
          PERFORM pg_notify({channel}(t.client), format('granted %s %s %s %s', t.id, n.last, now_us, t.handover_ttl));
        END IF;
      END IF;
      n.line := n.line - 1;
      n.front := t.seq + 1;
    END LOOP;
    EXIT WHEN many = 0;
  END LOOP;
END $$;

-- Makes the row of a name, which the caller has locked, say what its tickets say.
CREATE OR REPLACE FUNCTION {recount}(of_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE {name}
     SET held = holders.many, taken = holders.taken, opens = holders.opens, oldest = holders.oldest
    FROM (
      SELECT count(*) AS many, coalesce(sum(take), 0) AS taken, coalesce(min(expires), 9223372036854775807) AS opens,
             coalesce(min(seq), 0) AS oldest
        FROM {ticket} WHERE name = of_name AND NOT waiting
    ) AS holders
   WHERE name = of_name;
END $$;

-- Leaves a message for a client, and tells it that there is one.
CREATE OR REPLACE FUNCTION {post}(
  to_client bigint, what smallint, about uuid, by_pid bigint, by_host text, why text, now_us bigint
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO {mail} (client, says, id, pid, host, reason, until)
  VALUES (to_client, what, about, by_pid, by_host, why, now_us + 10000000);
  PERFORM pg_notify({channel}(to_client), 'mail');
END $$;
