-- sweep: drops what time has ended, and lets in who may now enter, from the front of the line to the first that must wait.
-- The caller has the name's row locked, has read these numbers from it, and writes them back if p_changed.
--
-- Nobody inside ends before p_ends, unless the clock went back and a renewal with it: then fewer last than are counted.
CREATE /*M! OR REPLACE */ PROCEDURE {p}sweep(
  IN p_name VARBINARY(512), IN p_now BIGINT, INOUT p_last BIGINT, INOUT p_holds INT UNSIGNED, INOUT p_waits INT UNSIGNED,
  INOUT p_taken BIGINT, INOUT p_head BIGINT, INOUT p_ends BIGINT, INOUT p_changed BOOLEAN)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_many INT UNSIGNED;
  DECLARE v_id BINARY(16);
  DECLARE v_mode TINYINT UNSIGNED;
  DECLARE v_take, v_permits INT UNSIGNED;
  DECLARE v_client BIGINT UNSIGNED;
  DECLARE v_sum, v_seq, v_handover, v_delay, v_alive, v_next BIGINT;

  IF p_holds > 0 AND p_ends <= p_now THEN
    SELECT COUNT(*), IFNULL(SUM(take), 0) INTO v_many, v_sum
      FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place BETWEEN p_ends AND p_now FOR UPDATE;
    IF v_many > 0 THEN
      DELETE FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place BETWEEN p_ends AND p_now;
      SET p_holds = p_holds - v_many, p_taken = p_taken - v_sum;
    END IF;
    IF p_holds > 0 THEN
      SELECT COUNT(*), IFNULL(MIN(place), p_ends) INTO v_many, v_next
        FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place > p_now LOCK IN SHARE MODE;
      IF v_many < p_holds THEN
        SELECT COUNT(*), IFNULL(SUM(take), 0) INTO v_many, v_sum
          FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place < p_ends FOR UPDATE;
        DELETE FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place < p_ends;
        SET p_holds = p_holds - v_many, p_taken = p_taken - v_sum;
      END IF;
      SET p_ends = v_next;
    END IF;
    SET p_changed = TRUE;
  END IF;

  line: WHILE p_waits > 0 DO
    SET v_id = NULL;
    -- From the head on: whoever stood before it may still be in the index, until the server has cleaned up.
    SELECT id, seq, client, mode, take, permits, handover, delay, ends
      INTO v_id, v_seq, v_client, v_mode, v_take, v_permits, v_handover, v_delay, v_alive
      FROM {p}ticket WHERE name = p_name AND waiting = 1 AND place >= p_head ORDER BY place LIMIT 1 FOR UPDATE;
    SET p_changed = p_changed OR v_id IS NULL OR p_head <> v_seq;
    IF v_id IS NULL THEN
      SET p_waits = 0; -- cannot be; if somebody has deleted rows by hand, it mends itself
      LEAVE line;
    END IF;
    SET p_head = v_seq;
    IF v_alive <= p_now THEN
      SELECT alive INTO v_alive FROM {p}client WHERE id = v_client LOCK IN SHARE MODE;
    END IF;
    IF v_alive <= p_now THEN
      DELETE FROM {p}ticket WHERE id = v_id;
      SET p_waits = p_waits - 1, p_changed = TRUE;
      ITERATE line;
    END IF;
    IF NOT CASE v_mode
      WHEN 0 THEN p_holds = 0
      WHEN 1 THEN p_holds = 0 OR p_taken > 0
      ELSE p_taken + v_take <= v_permits
    END THEN
      LEAVE line;
    END IF;
    SET p_last = GREATEST(p_last + 1, p_now);
    UPDATE {p}ticket SET waiting = 0, token = p_last, since = p_now, ends = p_now + v_handover + v_delay WHERE id = v_id;
    SET p_ends = IF(p_holds = 0, p_now + v_handover + v_delay, LEAST(p_ends, p_now + v_handover + v_delay));
    SET p_holds = p_holds + 1, p_taken = p_taken + v_take, p_waits = p_waits - 1, p_changed = TRUE;
  END WHILE;
END
