-- break: ends holds by force, all or the one with this token, and tells them. To a holder that is a loss, so its lock-delay
-- keeps the name closed; breaking it a second time ends that too. Gives now, and how many there were
CREATE /*M! OR REPLACE */ PROCEDURE {p}break(IN p_name VARBINARY(512), IN p_only BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_kind TINYINT UNSIGNED;
  DECLARE v_holds, v_waits, v_gone INT UNSIGNED;
  DECLARE v_last, v_taken, v_head, v_ends, v_now, v_sum, v_opens BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_many, v_there INT DEFAULT 0;
  DECLARE v_locked, v_changed BOOLEAN DEFAULT FALSE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SELECT kind, last, holds, waits, taken, head, ends, solo INTO v_kind, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_solo
    FROM {p}name WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF v_kind IS NULL THEN
    CALL {p}reach(p_name, FALSE, v_locked);
    IF NOT v_locked THEN
      SELECT kind, last, holds, waits, taken, head, ends, solo INTO v_kind, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_solo
        FROM {p}name WHERE name = p_name FOR UPDATE;
    END IF;
  END IF;
  SET v_now = {now};
  IF v_locked THEN
    -- A transaction that has the name has found no hold; one that only looks finds it, and lets go again. First where it may
    -- have been, then where it may have got to meanwhile.
    SELECT COUNT(*) INTO v_there FROM {p}name WHERE name = p_name AND solo IS NOT NULL AND ends > v_now;
    IF v_there = 0 THEN
      SELECT COUNT(*) INTO v_there FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place > v_now;
    END IF;
    IF v_there > 0 THEN
      SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'a transaction looks at the name'; -- tried again
    END IF;
  END IF;
  IF v_kind IS NOT NULL THEN
    IF v_solo IS NOT NULL THEN
      CALL {p}unfold(p_name);
    END IF;
    SELECT COUNT(*), IFNULL(SUM(closing = 1 OR delay = 0), 0), IFNULL(SUM(IF(closing = 1 OR delay = 0, take, 0)), 0)
      INTO v_many, v_gone, v_sum
      FROM {p}ticket WHERE name = p_name AND waiting = 0 AND (p_only IS NULL OR token = p_only) FOR UPDATE;
    INSERT INTO {p}mail (client, id, lost, reason, host, pid, sent)
      SELECT client, id, 1, '', '', 0, v_now
        FROM {p}ticket WHERE name = p_name AND waiting = 0 AND (p_only IS NULL OR token = p_only) ORDER BY seq;
    DELETE FROM {p}ticket
      WHERE name = p_name AND waiting = 0 AND (p_only IS NULL OR token = p_only) AND (closing = 1 OR delay = 0);
    UPDATE {p}ticket SET closing = 1, ends = v_now + delay, asked_reason = NULL, asked_host = NULL, asked_pid = NULL
      WHERE name = p_name AND waiting = 0 AND (p_only IS NULL OR token = p_only);
    SELECT MIN(place) INTO v_opens FROM {p}ticket WHERE name = p_name AND waiting = 0 LOCK IN SHARE MODE;
    SET v_holds = v_holds - v_gone, v_taken = v_taken - v_sum, v_ends = IFNULL(v_opens, v_ends), v_changed = v_many > 0;
    CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
    IF v_changed THEN
      UPDATE {p}name SET last = v_last, holds = v_holds, waits = v_waits, taken = v_taken, head = v_head, ends = v_ends,
        used = v_now WHERE name = p_name;
    END IF;
  END IF;
  COMMIT;
  SELECT v_now, v_many;
END
