-- in_transaction: locks a name for the rest of the caller's own transaction, which must have begun. It ends with that, and
-- nothing else ends it.
--
-- First the row in tx, which is how everybody else knows and what other transactions queue for; then a look whether anybody
-- holds or waits for the name, which at REPEATABLE READ is also where the transaction's snapshot begins, if it has none yet; then
-- the name's row, which must be what was looked at: else somebody came in between, or the snapshot is older than that, and what
-- the caller would read under the lock is old too.
--
-- What time has ended stays where it is, for the next verb to sweep: the caller's transaction may lock what lies between two
-- rows, of which one may be another name's, and keeps it locked. So it locks nothing but rows, each by its key. Whoever waits, and
-- counted as dead by the look, keeps its place and comes after it.
--
-- p_wait: how many seconds to wait for another transaction; 0 not at all.
-- gives locked token | leased | taken, by another transaction | stale | undone, by the server
CREATE /*M! OR REPLACE */ PROCEDURE {p}in_transaction(IN p_name VARBINARY(512), IN p_wait BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_patience INT UNSIGNED DEFAULT @@SESSION.innodb_lock_wait_timeout;
  DECLARE v_holds, v_waits, v_seen_holds, v_seen_waits INT UNSIGNED;
  DECLARE v_last, v_seq, v_taken, v_ends, v_now, v_seen_last, v_seen_seq BIGINT;
  DECLARE v_leases, v_over INT UNSIGNED DEFAULT 0;
  DECLARE v_place BIGINT DEFAULT 0;
  DECLARE v_id BINARY(16) DEFAULT '';
  DECLARE v_solo, v_next BINARY(16);
  DECLARE v_says VARCHAR(8) CHARACTER SET ascii;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN SET SESSION innodb_lock_wait_timeout = v_patience; RESIGNAL; END;

  BEGIN
    DECLARE EXIT HANDLER FOR 1205 SET v_says = IF(@@GLOBAL.innodb_rollback_on_timeout, 'undone', 'taken');
    -- MySQL cannot wait for less than a second.
    SET SESSION innodb_lock_wait_timeout = IF(VERSION() LIKE '%MariaDB%', p_wait, GREATEST(p_wait, 1));
    INSERT INTO {p}tx (name) VALUES (p_name) ON DUPLICATE KEY UPDATE name = p_name;
  END;
  SET SESSION innodb_lock_wait_timeout = v_patience;

  IF v_says IS NULL THEN
    SELECT last, seq, holds, waits INTO v_seen_last, v_seen_seq, v_seen_holds, v_seen_waits FROM {p}name WHERE name = p_name;
    SET v_now = {now};
    -- By statements of their own: a subquery in an IF reads with a lock, and would be in the way of renewals.
    -- And only where there is somebody: at SERIALIZABLE every look is a lock.
    IF v_seen_holds > 0 THEN
      SELECT COUNT(*) INTO v_leases FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place > v_now;
    END IF;
    IF v_leases = 0 THEN
      SELECT COUNT(*) INTO v_leases FROM {p}name WHERE name = p_name AND solo IS NOT NULL AND ends > v_now;
    END IF;
    IF v_leases = 0 AND v_seen_waits > 0 THEN
      SELECT COUNT(*) INTO v_leases FROM {p}ticket t LEFT JOIN {p}client c ON c.id = t.client
        WHERE t.name = p_name AND t.waiting = 1 AND GREATEST(t.ends, IFNULL(c.alive, 0)) > v_now;
    END IF;
    IF v_leases > 0 THEN
      SET v_says = 'leased';
    END IF;
  END IF;

  IF v_says IS NULL THEN
    SAVEPOINT {p}in_transaction;
    INSERT INTO {p}name (name, kind, permits, last, seq, holds, waits, taken, head, ends, used)
      VALUES (p_name, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0)
      ON DUPLICATE KEY UPDATE name = p_name;
    SELECT last, seq, holds, waits, taken, ends, solo INTO v_last, v_seq, v_holds, v_waits, v_taken, v_ends, v_solo
      FROM {p}name WHERE name = p_name FOR UPDATE;
    SET v_now = {now};
    -- With these the same, nobody has come or gone since: but for renewals, those who were looked at are those who are there.
    IF v_last <> IFNULL(v_seen_last, -1) OR v_seq <> IFNULL(v_seen_seq, 0) OR v_holds <> IFNULL(v_seen_holds, 0)
      OR v_waits <> IFNULL(v_seen_waits, 0) OR v_solo IS NOT NULL AND v_ends > v_now THEN
      SET v_says = 'stale';
    ELSEIF v_solo IS NOT NULL THEN
      SET v_holds = 0, v_taken = 0;
    ELSEIF v_holds > 0 THEN
      inside: LOOP
        SET v_next = NULL;
        SELECT id, place INTO v_next, v_place FROM {p}ticket
          WHERE name = p_name AND waiting = 0 AND place >= v_place AND (place > v_place OR id > v_id) ORDER BY place, id LIMIT 1;
        IF v_next IS NULL THEN
          LEAVE inside;
        END IF;
        SET v_id = v_next, v_ends = NULL;
        SELECT ends INTO v_ends FROM {p}ticket WHERE id = v_id FOR UPDATE;
        IF v_ends IS NULL OR v_ends > v_now THEN
          LEAVE inside;
        END IF;
        -- A renewal that began in time, and comes to it only after this transaction, must not find a hold there.
        UPDATE {p}ticket SET closing = 1 WHERE id = v_id;
        SET v_over = v_over + 1;
      END LOOP;
      IF v_over <> v_holds THEN
        SET v_says = 'stale'; -- renewed, or made a ticket of, since the snapshot was made
      END IF;
    END IF;
    IF v_says IS NULL THEN
      IF v_last < 0 THEN
        SELECT token INTO v_last FROM {p}floor WHERE id = 1;
      END IF;
      SET v_last = GREATEST(v_last + 1, v_now), v_says = 'locked';
      UPDATE {p}name SET last = v_last, holds = v_holds, taken = v_taken, used = v_now, solo = NULL WHERE name = p_name;
      RELEASE SAVEPOINT {p}in_transaction;
    ELSE
      ROLLBACK TO SAVEPOINT {p}in_transaction;
    END IF;
  END IF;
  SELECT v_says, v_last;
END
