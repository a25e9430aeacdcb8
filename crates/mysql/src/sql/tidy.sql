-- tidy: removes what is left of a name if nobody has used it for p_quiet. Whoever is at the name keeps it. Gives now
--
-- The floor first: whoever makes a name's row waits for it while having that row, and this waits for no name.
CREATE /*M! OR REPLACE */ PROCEDURE {p}tidy(IN p_alone BOOLEAN, IN p_name VARBINARY(512), IN p_quiet BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_holds, v_waits INT UNSIGNED;
  DECLARE v_floor, v_last, v_taken, v_head, v_ends, v_used, v_now BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_changed BOOLEAN DEFAULT FALSE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF p_alone THEN START TRANSACTION; END IF;
  SELECT token INTO v_floor FROM {p}floor WHERE id = 1 FOR UPDATE;
  SELECT last, holds, waits, taken, head, ends, used, solo
    INTO v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_used, v_solo
    FROM {p}name WHERE name = p_name FOR UPDATE SKIP LOCKED;
  SET v_now = {now};
  IF v_last IS NOT NULL THEN
    IF v_solo IS NOT NULL AND v_ends <= v_now THEN
      CALL {p}unfold(p_name);
    END IF;
    CALL {p}sweep(p_name, v_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
    IF v_holds = 0 AND v_waits = 0 AND v_used + p_quiet <= v_now THEN
      IF v_last > v_floor THEN
        UPDATE {p}floor SET token = v_last WHERE id = 1;
      END IF;
      DELETE FROM {p}name WHERE name = p_name;
    ELSEIF v_changed THEN
      UPDATE {p}name SET last = v_last, holds = v_holds, waits = v_waits, taken = v_taken, head = v_head, ends = v_ends
        WHERE name = p_name;
    END IF;
  END IF;
  IF p_alone THEN COMMIT; END IF;
  SELECT v_now;
END
