-- renew: extends holds by their ttl, those that are still held. It waits for nobody: of a ticket that somebody else is at in
-- this moment it says so.
--
-- A ticket that is in its name's row may be made a row of its own at any time, but in one step: what this statement sees, once
-- and for all, has it in one place or the other, or it is not there at all. Where it could not be locked, it is seen and unknown.
--
-- A renewal that had to wait for a table, and that nobody waits for any more, may come after later ones: where a hold lasts longer than
-- this would make it, the clock is read again, so that no end is set back but by the clock itself.
--
-- Gives for each claim, in order: 0 held, 1 lost, 2 unknown; what somebody asked of its holder; and the time.
CREATE OR REPLACE FUNCTION {renew}(names text[], ids uuid[])
RETURNS TABLE (says smallint, pid bigint, host text, reason text, at bigint)
LANGUAGE plpgsql ROWS 10 SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  now_us CONSTANT bigint := {clock}();
BEGIN
  RETURN QUERY
  WITH mine AS MATERIALIZED (
    SELECT t.id FROM {ticket} t WHERE t.id = ANY (ids) FOR UPDATE SKIP LOCKED
  ), alone AS MATERIALIZED (
    SELECT n.name, (n.solo).id,
           CASE WHEN n.opens > now_us + (n.solo).ttl + (n.solo).lock_delay THEN {clock}() ELSE now_us END AS since
      FROM {name} n WHERE n.name = ANY (names) AND (n.solo).id = ANY (ids) FOR UPDATE SKIP LOCKED
  ), renewed AS (
    UPDATE {ticket} t
       SET expires = t.ttl + t.lock_delay + CASE WHEN t.expires > now_us + t.ttl + t.lock_delay THEN {clock}() ELSE now_us END
      FROM mine
     WHERE t.id = mine.id AND NOT t.waiting AND NOT t.closing AND t.expires > now_us
    RETURNING t.id, t.asked_pid, t.asked_host, t.asked_reason
  ), renewed_alone AS (
    UPDATE {name} n
       SET solo.expires = alone.since + (n.solo).ttl + (n.solo).lock_delay,
           opens = alone.since + (n.solo).ttl + (n.solo).lock_delay
      FROM alone
     WHERE n.name = alone.name AND n.opens > now_us
    RETURNING (n.solo).id
  )
  SELECT (CASE
           WHEN r.id IS NOT NULL OR a.id IS NOT NULL THEN 0
           WHEN (m.id IS NULL AND seen.id IS NOT NULL) OR (l.id IS NULL AND n.name IS NOT NULL) THEN 2
           ELSE 1
         END)::smallint,
         r.asked_pid, r.asked_host, r.asked_reason, now_us
    FROM unnest(names, ids) WITH ORDINALITY AS u (name, id, place)
    LEFT JOIN renewed r ON r.id = u.id
    LEFT JOIN renewed_alone a ON a.id = u.id
    LEFT JOIN mine m ON m.id = u.id
    LEFT JOIN alone l ON l.id = u.id
    LEFT JOIN {ticket} seen ON seen.id = u.id
    LEFT JOIN {name} n ON n.name = u.name COLLATE "C" AND (n.solo).id = u.id
   ORDER BY u.place;
END $$;
