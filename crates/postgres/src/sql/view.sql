-- view: who holds names and who waits for them, in order.
CREATE OR REPLACE FUNCTION {view}(names text[])
RETURNS TABLE (
  at bigint, name text, kind smallint, waiting boolean, closing boolean, id uuid, mode smallint, take bigint, room bigint,
  token bigint, pid bigint, host text, note text, age bigint, expires_in bigint,
  asked_pid bigint, asked_host text, asked_reason text
) LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
  SELECT now_us, n.name, n.kind, t.waiting, t.closing, t.id, t.mode, t.take, t.room,
         t.token, t.pid, t.host, t.note, greatest(now_us - t.since, 0), t.expires - now_us,
         t.asked_pid, t.asked_host, t.asked_reason
    FROM (SELECT {clock}() AS now_us OFFSET 0) AS clock
   CROSS JOIN {name} n
   CROSS JOIN LATERAL (
     SELECT w.* FROM {ticket} w WHERE w.name = n.name
      UNION ALL
     SELECT (n.solo).* WHERE (n.solo).id IS NOT NULL
   ) AS t
    LEFT JOIN {client} c ON c.client = t.client
   WHERE n.name = ANY (names) AND CASE WHEN t.waiting THEN c.alive ELSE t.expires END > now_us
   ORDER BY n.name, t.waiting, t.seq
$$;

-- list: the views of names in use that begin with some text, in byte order, after one of them; of at most so many names.
CREATE OR REPLACE FUNCTION {list}(beginning text, after text, many integer)
RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT n.name
    FROM (SELECT {clock}() AS now_us OFFSET 0) AS clock
   CROSS JOIN {name} n
   WHERE n.name >= beginning AND n.name <= beginning || repeat(chr(1114111), 128) AND starts_with(n.name, beginning)
     AND (after IS NULL OR n.name > after)
     AND ((n.solo).expires > now_us OR EXISTS (
       SELECT FROM {ticket} t LEFT JOIN {client} c ON c.client = t.client
        WHERE t.name = n.name AND CASE WHEN t.waiting THEN c.alive ELSE t.expires END > now_us
     ))
   ORDER BY n.name
   LIMIT many
$$;
