-- downgrade: makes a reader of the writer that holds an rw lock, and lets other readers in. It
-- keeps its token and its window. A reader stays a reader, so that a copy which arrives late
-- changes nothing.
--
-- gives now, and 1; or 0 if it is not held any more
CREATE /*M! OR REPLACE */ PROCEDURE {p}downgrade(IN p_name VARBINARY(512), IN p_id BINARY(16))
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_kind, v_mode TINYINT UNSIGNED;
  DECLARE v_holds, v_waits, v_take INT UNSIGNED;
  DECLARE v_last, v_taken, v_head, v_ends, v_now BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_there, v_reads INT DEFAULT 0;
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
    -- A transaction that has the name has found no hold; one that only looks finds ours, and lets go again. First where it may
    -- have been, then where it may have got to meanwhile.
    SELECT COUNT(*) INTO v_there FROM {p}name WHERE name = p_name AND solo = p_id AND ends > v_now;
    IF v_there = 0 THEN
      SELECT COUNT(*) INTO v_there FROM {p}ticket WHERE id = p_id AND waiting = 0 AND closing = 0 AND ends > v_now;
    END IF;
    IF v_there > 0 THEN
      SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'a transaction looks at the name'; -- tried again
    END IF;
  END IF;
  IF v_kind IS NOT NULL THEN
    IF v_solo IS NOT NULL THEN
      CALL {p}unfold(p_name);
    END IF;
    CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
    SELECT mode, take INTO v_mode, v_take FROM {p}ticket WHERE id = p_id AND waiting = 0 AND closing = 0 AND mode < 2 FOR UPDATE;
    IF v_mode IS NOT NULL THEN
      SET v_reads = 1;
      IF v_mode = 0 THEN
        UPDATE {p}ticket SET mode = 1, take = 1 WHERE id = p_id;
        SET v_taken = v_taken - v_take + 1, v_changed = TRUE;
        CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
      END IF;
    END IF;
    IF v_changed THEN
      UPDATE {p}name SET last = v_last, holds = v_holds, waits = v_waits, taken = v_taken, head = v_head, ends = v_ends,
        used = v_now WHERE name = p_name;
    END IF;
  END IF;
  COMMIT;
  SELECT v_now, v_reads;
END
