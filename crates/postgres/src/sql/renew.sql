-- renew: extends holds by their ttl, those that are still held. It waits for nobody: of a ticket that somebody else is at in
-- this moment it says so.
--
-- Gives for each claim, in order: 0 held, 1 lost, 2 unknown; what somebody asked of its holder; and the time.
CREATE OR REPLACE FUNCTION {renew}(ids uuid[])
RETURNS TABLE (says smallint, pid bigint, host text, reason text, at bigint)
LANGUAGE plpgsql ROWS 10 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  now_us CONSTANT bigint := {clock}();
BEGIN
  RETURN QUERY
  WITH mine AS MATERIALIZED (
    SELECT t.id FROM {ticket} t WHERE t.id = ANY (ids) FOR UPDATE SKIP LOCKED
  ), renewed AS (
    UPDATE {ticket} t SET expires = now_us + t.ttl + t.lock_delay
      FROM mine
     WHERE t.id = mine.id AND NOT t.waiting AND NOT t.closing AND t.expires > now_us
    RETURNING t.id, t.asked_pid, t.asked_host, t.asked_reason
  )
  SELECT (CASE WHEN r.id IS NOT NULL THEN 0 WHEN m.id IS NULL AND seen.id IS NOT NULL THEN 2 ELSE 1 END)::smallint,
         r.asked_pid, r.asked_host, r.asked_reason, now_us
    FROM unnest(ids) WITH ORDINALITY AS u (id, place)
    LEFT JOIN renewed r ON r.id = u.id
    LEFT JOIN mine m ON m.id = u.id
    LEFT JOIN {ticket} seen ON seen.id = u.id
   ORDER BY u.place;
END $$;
