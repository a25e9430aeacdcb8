-- request: leaves a request with every holder to let go, and tells them. Gives now, and how many there were
CREATE /*M! OR REPLACE */ PROCEDURE {p}request(
  IN p_name VARBINARY(512), IN p_reason VARBINARY(1024), IN p_host VARBINARY(1024), IN p_pid INT UNSIGNED)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_kind TINYINT UNSIGNED;
  DECLARE v_solo BINARY(16);
  DECLARE v_now BIGINT;
  DECLARE v_many, v_there INT DEFAULT 0;
  DECLARE v_locked BOOLEAN DEFAULT FALSE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SELECT kind, solo INTO v_kind, v_solo FROM {p}name WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF v_kind IS NULL THEN
    CALL {p}reach(p_name, FALSE, v_locked);
    IF NOT v_locked THEN
      SELECT kind, solo INTO v_kind, v_solo FROM {p}name WHERE name = p_name FOR UPDATE;
    END IF;
  END IF;
  SET v_now = {now};
  IF v_locked THEN
    -- A transaction that has the name has found no hold; one that only looks finds it, and lets go again. First where it may
    -- have been, then where it may have got to meanwhile.
    SELECT COUNT(*) INTO v_there FROM {p}name WHERE name = p_name AND solo IS NOT NULL AND ends > v_now;
    IF v_there = 0 THEN
      SELECT COUNT(*) INTO v_there FROM {p}ticket WHERE name = p_name AND waiting = 0 AND closing = 0 AND place > v_now;
    END IF;
    IF v_there > 0 THEN
      SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1205, MESSAGE_TEXT = 'a transaction looks at the name'; -- tried again
    END IF;
  END IF;
  IF v_kind IS NOT NULL THEN
    IF v_solo IS NOT NULL THEN
      CALL {p}unfold(p_name);
    END IF;
    SELECT COUNT(*) INTO v_many FROM {p}ticket WHERE name = p_name AND waiting = 0 AND closing = 0 FOR UPDATE;
    INSERT INTO {p}mail (client, id, lost, reason, host, pid, sent)
      SELECT client, id, 0, p_reason, p_host, p_pid, v_now
        FROM {p}ticket WHERE name = p_name AND waiting = 0 AND closing = 0 ORDER BY seq;
    UPDATE {p}ticket SET asked_reason = p_reason, asked_host = p_host, asked_pid = p_pid
      WHERE name = p_name AND waiting = 0 AND closing = 0;
  END IF;
  COMMIT;
  SELECT v_now, v_many;
END
