-- convert: changes the mode of a hold in place. A writer becomes a reader at any time and lets other readers in; a reader
-- becomes the writer only while it is alone inside, and gets a new token. A request that comes so late that the hold has
-- another token by now changes nothing.
--
-- gives now, token, left; or now alone if it cannot be had
CREATE /*M! OR REPLACE */ PROCEDURE {p}convert(
  IN p_name VARBINARY(512), IN p_id BINARY(16), IN p_mode TINYINT UNSIGNED, IN p_take INT UNSIGNED,
  IN p_permits INT UNSIGNED, IN p_known BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_kind, v_mode TINYINT UNSIGNED;
  DECLARE v_holds, v_waits, v_take, v_permits INT UNSIGNED;
  DECLARE v_last, v_taken, v_head, v_ends, v_now, v_token, v_ttl, v_delay, v_left BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_there INT DEFAULT 0;
  DECLARE v_same, v_up, v_locked, v_changed BOOLEAN DEFAULT FALSE;
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
    SELECT mode, take, permits, token, ttl, delay INTO v_mode, v_take, v_permits, v_token, v_ttl, v_delay
      FROM {p}ticket WHERE id = p_id AND waiting = 0 AND closing = 0 FOR UPDATE;
    IF v_mode IS NOT NULL THEN
      SET v_same = v_mode = p_mode AND v_take = p_take AND v_permits = p_permits;
      SET v_up = v_token = p_known AND v_mode < 2 AND p_mode = 0 AND v_holds = 1;
      IF v_same OR v_up OR (v_token = p_known AND v_mode = 0 AND p_mode = 1) THEN
        IF v_up THEN
          -- A reader that came later and has gone may have shown a higher token than ours to the resource.
          SET v_last = GREATEST(v_last + 1, v_now), v_token = v_last;
        END IF;
        -- The grant that comes of it has a whole window.
        UPDATE {p}ticket SET mode = p_mode, take = p_take, permits = p_permits, token = v_token,
          ends = v_now + v_ttl + v_delay WHERE id = p_id;
        SET v_taken = v_taken - v_take + p_take, v_left = v_ttl, v_changed = TRUE;
        CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
      END IF;
    END IF;
    IF v_changed THEN
      UPDATE {p}name SET last = v_last, holds = v_holds, waits = v_waits, taken = v_taken, head = v_head, ends = v_ends,
        used = v_now WHERE name = p_name;
    END IF;
  END IF;
  COMMIT;
  SELECT v_now, IF(v_left IS NULL, NULL, v_token), v_left;
END
