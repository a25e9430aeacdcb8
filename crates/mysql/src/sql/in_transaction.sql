-- in_transaction: locks a name for the rest of the caller's own transaction, which must have begun. It ends with that, and
-- nothing else ends it.
--
-- First the row in tx, which is how everybody else knows and what other transactions queue for; then a look whether anybody
-- holds or waits for the name, which at REPEATABLE READ is also where the transaction's snapshot begins, if it has none yet; then
-- the name's row, which must be what was looked at: else somebody came in between, or the snapshot is older than that, and what
-- the caller would read under the lock is old too.
--
-- p_wait: how many seconds to wait for another transaction; 0 not at all.
-- gives locked token | leased | taken, by another transaction | stale | session, if the tables are used so | undone, by the server
CREATE /*M! OR REPLACE */ PROCEDURE {p}in_transaction(IN p_name VARBINARY(512), IN p_wait BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_patience INT UNSIGNED DEFAULT @@SESSION.innodb_lock_wait_timeout;
  DECLARE v_holds, v_waits, v_seen_holds, v_seen_waits, v_leases INT UNSIGNED;
  DECLARE v_last, v_taken, v_head, v_ends, v_now, v_seen_last BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_liveness VARBINARY(16);
  DECLARE v_changed BOOLEAN DEFAULT FALSE;
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
    SELECT liveness INTO v_liveness FROM {p}setup WHERE id = 1;
    SELECT last, holds, waits INTO v_seen_last, v_seen_holds, v_seen_waits FROM {p}name WHERE name = p_name;
    SET v_now = {now};
    -- By statements of their own: a subquery in an IF reads with a lock, and would be in the way of renewals.
    SELECT COUNT(*) INTO v_leases FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place > v_now;
    IF v_leases = 0 THEN
      SELECT COUNT(*) INTO v_leases FROM {p}name WHERE name = p_name AND solo IS NOT NULL AND ends > v_now;
    END IF;
    IF v_leases = 0 AND v_seen_waits > 0 THEN
      SELECT COUNT(*) INTO v_leases FROM {p}ticket t LEFT JOIN {p}client c ON c.id = t.client
        WHERE t.name = p_name AND t.waiting = 1 AND GREATEST(t.ends, IFNULL(c.alive, 0)) > v_now;
    END IF;
    IF v_liveness = 'session' THEN
      SET v_says = 'session';
    ELSEIF v_leases > 0 THEN
      SET v_says = 'leased';
    ELSEIF v_liveness IS NULL THEN
      UPDATE {p}setup SET liveness = 'lease' WHERE id = 1 AND liveness IS NULL; -- sessions could not see this
    END IF;
  END IF;

  IF v_says IS NULL THEN
    SAVEPOINT {p}in_transaction;
    INSERT INTO {p}name (name, kind, permits, last, seq, holds, waits, taken, head, ends, used)
      VALUES (p_name, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0)
      ON DUPLICATE KEY UPDATE name = p_name;
    SELECT last, holds, waits, taken, head, ends, solo INTO v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_solo
      FROM {p}name WHERE name = p_name FOR UPDATE;
    SET v_now = {now};
    IF v_last <> IFNULL(v_seen_last, -1) OR v_holds <> IFNULL(v_seen_holds, 0) OR v_waits <> IFNULL(v_seen_waits, 0) THEN
      SET v_says = 'stale';
    ELSEIF v_holds > 0 OR v_waits > 0 THEN
      IF v_solo IS NOT NULL THEN
        CALL {p}unfold(p_name);
      END IF;
      CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
      IF v_holds > 0 OR v_waits > 0 THEN
        SET v_says = 'stale'; -- renewed, or heard of, since the snapshot was made
      END IF;
    END IF;
    IF v_says IS NULL THEN
      IF v_last < 0 THEN
        SELECT token INTO v_last FROM {p}floor WHERE id = 1;
      END IF;
      SET v_last = GREATEST(v_last + 1, v_now), v_says = 'locked';
      UPDATE {p}name SET last = v_last, holds = 0, waits = 0, taken = 0, head = v_head, ends = v_ends, used = v_now
        WHERE name = p_name;
      RELEASE SAVEPOINT {p}in_transaction;
    ELSE
      ROLLBACK TO SAVEPOINT {p}in_transaction;
    END IF;
  END IF;
  SELECT v_says, v_last;
END
