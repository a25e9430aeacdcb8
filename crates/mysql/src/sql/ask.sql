-- ask: lets a claim in, puts it in line if p_queue says for how long it counts as alive there, or neither. Asked again with
-- the same id, it answers as the first time.
--
-- gives now, and one of: granted token left, and 1 if it has no ticket | queued first change_in | busy | locked | mismatch
-- kind permits | ended
CREATE /*M! OR REPLACE */ PROCEDURE {p}ask(
  IN p_alone BOOLEAN, IN p_name VARBINARY(512), IN p_id BINARY(16), IN p_kind TINYINT UNSIGNED, IN p_mode TINYINT UNSIGNED,
  IN p_take INT UNSIGNED, IN p_permits INT UNSIGNED, IN p_client BIGINT UNSIGNED, IN p_ttl BIGINT, IN p_handover BIGINT,
  IN p_delay BIGINT, IN p_note VARBINARY(1024), IN p_host VARBINARY(1024), IN p_pid INT UNSIGNED, IN p_queue BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_kind TINYINT UNSIGNED;
  DECLARE v_permits, v_holds, v_waits INT UNSIGNED;
  DECLARE v_last, v_seq, v_taken, v_head, v_ends, v_now, v_marked, v_mark, v_mine, v_token, v_left, v_next BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_waiting, v_closing TINYINT UNSIGNED;
  DECLARE v_enters, v_locked, v_new, v_changed BOOLEAN DEFAULT FALSE;
  DECLARE v_says VARCHAR(8) CHARACTER SET ascii;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF p_alone THEN START TRANSACTION; END IF;
  SELECT kind, permits, last, seq, holds, waits, taken, head, ends, marked, solo
    INTO v_kind, v_permits, v_last, v_seq, v_holds, v_waits, v_taken, v_head, v_ends, v_marked, v_solo
    FROM {p}name WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF v_kind IS NULL THEN
    BEGIN
      -- It is not there, or somebody has it: then this does not wait to find out which. (MySQL does, for a second at most.)
      DECLARE CONTINUE HANDLER FOR 1062, 1205, 3572 SET v_new = FALSE;
      SET v_new = TRUE;
      /*M! SET STATEMENT innodb_lock_wait_timeout = 0 FOR */
      INSERT INTO {p}name (name, kind, permits, last, seq, holds, waits, taken, head, ends, used)
        VALUES (p_name, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0);
    END;
    IF NOT v_new AND p_alone THEN
      START TRANSACTION; -- with innodb_rollback_on_timeout the first one is over, and each statement that follows would be one of its own
    END IF;
    IF v_new THEN
      SET v_kind = 0, v_permits = 0, v_last = -1, v_seq = 0, v_holds = 0, v_waits = 0, v_taken = 0, v_head = 0, v_ends = 0,
        v_marked = 9223372036854775807;
    ELSE
      CALL {p}reach(p_name, TRUE, v_locked);
    END IF;
    IF v_kind IS NULL AND NOT v_locked THEN
      SELECT kind, permits, last, seq, holds, waits, taken, head, ends, marked, solo
        INTO v_kind, v_permits, v_last, v_seq, v_holds, v_waits, v_taken, v_head, v_ends, v_marked, v_solo
        FROM {p}name WHERE name = p_name FOR UPDATE;
    END IF;
    IF v_last < 0 THEN
      SET v_new = TRUE;
      SELECT token INTO v_last FROM {p}floor WHERE id = 1 LOCK IN SHARE MODE;
    END IF;
  END IF;
  IF v_marked = 9223372036854775807 THEN
    -- A new row: any mark there is may be about it. Those that are came before this row's lock, or come after it.
    SELECT IFNULL(MAX(ends), 0) INTO v_marked FROM {p}mark;
  END IF;
  SET v_now = {now};
  IF v_marked > v_now THEN
    SELECT ends INTO v_mark FROM {p}mark WHERE id = p_id LOCK IN SHARE MODE;
  END IF;

  IF v_locked THEN
    SET v_says = 'locked';
  ELSEIF v_mark > v_now THEN
    SET v_says = 'ended';
  ELSEIF v_holds > 0 OR v_waits > 0 THEN
    IF v_solo IS NOT NULL THEN
      CALL {p}unfold(p_name);
      SET v_solo = NULL;
    END IF;
    CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
    SELECT waiting, closing, token, seq, ends - delay - v_now INTO v_waiting, v_closing, v_token, v_mine, v_left
      FROM {p}ticket WHERE id = p_id FOR UPDATE;
    -- Found again: what the first request wrote may be seen and not be on the disk yet. This commit must wait for the disk
    -- too, so it must write something.
    SET v_changed = v_changed OR v_waiting IS NOT NULL;
    IF v_closing = 1 THEN
      SET v_says = 'busy';
    ELSEIF v_waiting = 1 THEN
      SET v_says = 'queued';
    ELSEIF v_waiting = 0 THEN
      SET v_says = 'granted';
    ELSEIF (v_holds > 0 OR v_waits > 0) AND (v_kind <> p_kind OR v_permits <> p_permits) THEN
      SET v_says = 'mismatch', v_token = v_kind, v_left = v_permits;
    END IF;
  END IF;

  IF v_says IS NULL THEN
    IF v_holds = 0 AND v_waits = 0 THEN
      SET v_kind = p_kind, v_permits = p_permits;
    END IF;
    SET v_enters = v_waits = 0 AND CASE p_mode
      WHEN 0 THEN v_holds = 0
      WHEN 1 THEN v_holds = 0 OR v_taken > 0
      ELSE v_taken + p_take <= p_permits
    END;
    IF v_enters THEN
      SET v_seq = v_seq + 1, v_last = GREATEST(v_last + 1, v_now);
      SET v_says = 'granted', v_token = v_last, v_left = p_ttl;
    END IF;
    IF v_enters AND v_holds = 0 THEN
      UPDATE {p}name SET kind = v_kind, permits = v_permits, last = v_last, seq = v_seq, holds = 1, waits = 0, taken = p_take,
        ends = v_now + p_ttl + p_delay, used = v_now, marked = v_marked, solo = p_id, solo_mode = p_mode, solo_take = p_take,
        solo_client = p_client, solo_ttl = p_ttl, solo_handover = p_handover, solo_delay = p_delay, solo_note = p_note,
        solo_host = p_host, solo_pid = p_pid WHERE name = p_name;
      SET v_solo = p_id, v_changed = FALSE, v_new = FALSE; -- it is written
    ELSEIF v_enters THEN
      INSERT INTO {p}ticket (id, name, waiting, closing, mode, take, permits, client, ttl, handover, delay, note, host, pid,
                             seq, since, token, ends)
        VALUES (p_id, p_name, 0, 0, p_mode, p_take, p_permits, p_client, p_ttl, p_handover, p_delay, p_note, p_host, p_pid,
                v_seq, v_now, v_last, v_now + p_ttl + p_delay);
      SET v_ends = LEAST(v_ends, v_now + p_ttl + p_delay);
      SET v_holds = v_holds + 1, v_taken = v_taken + p_take, v_changed = TRUE;
    ELSEIF p_queue IS NOT NULL THEN
      SET v_seq = v_seq + 1, v_mine = v_seq, v_changed = TRUE;
      INSERT INTO {p}ticket (id, name, waiting, closing, mode, take, permits, client, ttl, handover, delay, note, host, pid,
                             seq, since, token, ends)
        VALUES (p_id, p_name, 1, 0, p_mode, p_take, p_permits, p_client, p_ttl, p_handover, p_delay, p_note, p_host, p_pid,
                v_seq, v_now, 0, v_now + p_queue);
      SET v_head = IF(v_waits = 0, v_seq, v_head), v_waits = v_waits + 1;
      SET v_says = 'queued';
    ELSE
      SET v_says = 'busy';
    END IF;
  END IF;

  IF v_changed THEN
    UPDATE {p}name SET kind = v_kind, permits = v_permits, last = v_last, seq = v_seq, holds = v_holds, waits = v_waits,
      taken = v_taken, head = v_head, ends = v_ends, used = v_now, marked = v_marked WHERE name = p_name;
  ELSEIF v_new THEN
    DELETE FROM {p}name WHERE name = p_name;
  END IF;
  IF v_says = 'queued' THEN
    SELECT MIN(place) INTO v_next FROM {p}ticket WHERE name = p_name AND waiting = 0 AND place >= v_ends;
    SET v_token = v_mine = v_head, v_left = v_next - v_now;
  END IF;
  IF p_alone THEN COMMIT; END IF;
  SELECT v_now, v_says, v_token, v_left, IFNULL(v_solo = p_id, 0);
END
