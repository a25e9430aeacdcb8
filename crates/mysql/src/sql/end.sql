-- end: ends a claim, whatever it was: a hold, a place in line, or nothing. A hold that is let go before its minimum is over
-- keeps the name closed until then. With p_mark no request for the claim is granted for so long.
--
-- gives now, and done, or locked while somebody's own transaction has the name, or nothing where nothing of the claim was there but
-- perhaps what keeps the name closed
CREATE /*M! OR REPLACE */ PROCEDURE {p}end(
  IN p_alone BOOLEAN, IN p_name VARBINARY(512), IN p_id BINARY(16), IN p_min_hold BIGINT, IN p_mark BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_kind TINYINT UNSIGNED;
  DECLARE v_holds, v_waits, v_take INT UNSIGNED;
  DECLARE v_last, v_taken, v_head, v_ends, v_now, v_opens, v_over BIGINT;
  DECLARE v_waiting, v_closing TINYINT UNSIGNED;
  DECLARE v_solo BINARY(16);
  DECLARE v_there, v_alone INT DEFAULT 0;
  DECLARE v_locked, v_changed BOOLEAN DEFAULT FALSE;
  DECLARE v_says VARCHAR(8) CHARACTER SET ascii DEFAULT 'nothing';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF p_alone THEN START TRANSACTION; END IF;
  SELECT kind, last, holds, waits, taken, head, ends, solo INTO v_kind, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_solo
    FROM {p}name WHERE name = p_name FOR UPDATE SKIP LOCKED;
  IF v_kind IS NULL THEN
    CALL {p}reach(p_name, p_mark > 0, v_locked); -- an ask that comes meanwhile waits for the mark by waiting for the name
    IF NOT v_locked THEN
      SELECT kind, last, holds, waits, taken, head, ends, solo INTO v_kind, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_solo
        FROM {p}name WHERE name = p_name FOR UPDATE;
    END IF;
  END IF;
  SET v_now = {now};
  IF p_mark > 0 THEN
    INSERT INTO {p}mark (id, ends) VALUES (p_id, v_now + p_mark) ON DUPLICATE KEY UPDATE ends = GREATEST(ends, v_now + p_mark);
  END IF;

  IF v_locked THEN
    -- Whoever has the name has seen that nobody alive is there: what is over by time need not be ended.
    -- A statement of its own: a subquery in an IF reads with a lock, and would wait for it.
    SELECT COUNT(*) INTO v_alone FROM {p}name WHERE name = p_name AND solo = p_id AND ends > v_now;
    SELECT COUNT(*) INTO v_there FROM {p}ticket WHERE id = p_id AND (waiting = 1 OR ends > v_now);
    -- Nor can it be written into the name's row that there is a mark: then this must come again.
    IF v_there > 0 OR v_alone > 0 OR p_mark > 0 THEN
      SET v_says = 'locked';
    END IF;
  ELSEIF v_solo = p_id AND p_min_hold = 0 THEN
    UPDATE {p}name SET holds = 0, taken = 0, solo = NULL, used = v_now WHERE name = p_name;
    SET v_holds = 0, v_says = 'done';
  ELSEIF v_solo <> p_id AND v_ends > v_now THEN
    SET v_holds = 0; -- somebody else is there, alone: nothing to do
  ELSEIF v_holds > 0 OR v_waits > 0 THEN
    IF v_solo IS NOT NULL THEN
      CALL {p}unfold(p_name);
    END IF;
    -- A clock that was set back may show less than when the hold began; then it began now.
    SELECT waiting, closing, take, LEAST(since, v_now) + p_min_hold, ends INTO v_waiting, v_closing, v_take, v_opens, v_over
      FROM {p}ticket WHERE id = p_id FOR UPDATE;
    IF v_waiting = 1 THEN
      DELETE FROM {p}ticket WHERE id = p_id;
      SET v_waits = v_waits - 1, v_changed = TRUE, v_says = 'done';
    ELSEIF v_closing = 0 AND v_opens > v_now AND v_over > v_now THEN
      UPDATE {p}ticket SET closing = 1, ends = v_opens, asked_reason = NULL, asked_host = NULL, asked_pid = NULL
        WHERE id = p_id;
      SET v_ends = LEAST(v_ends, v_opens), v_changed = TRUE, v_says = 'done';
    ELSEIF v_closing = 0 THEN
      DELETE FROM {p}ticket WHERE id = p_id;
      SET v_holds = v_holds - 1, v_taken = v_taken - v_take, v_changed = TRUE, v_says = 'done';
    END IF;
  END IF;
  IF v_holds > 0 OR v_waits > 0 THEN
    CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
  END IF;
  IF v_changed THEN
    UPDATE {p}name SET last = v_last, holds = v_holds, waits = v_waits, taken = v_taken, head = v_head, ends = v_ends,
      used = v_now WHERE name = p_name;
  END IF;
  IF v_last < 0 THEN
    DELETE FROM {p}name WHERE name = p_name; -- nobody had asked for it: whoever makes it anew looks for marks
  ELSEIF p_mark > 0 AND v_kind IS NOT NULL THEN
    UPDATE {p}name SET marked = GREATEST(marked, v_now + p_mark) WHERE name = p_name;
  END IF;
  IF p_alone THEN COMMIT; END IF;
  SELECT v_now, v_says;
END
