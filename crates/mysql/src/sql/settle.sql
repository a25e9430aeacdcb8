-- settle: lets in whom time alone has made room for, unless somebody else is at the name, who then does it. Says when.
CREATE /*M! OR REPLACE */ PROCEDURE {p}settle(IN p_name VARBINARY(512), OUT p_now BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_holds, v_waits INT UNSIGNED;
  DECLARE v_last, v_taken, v_head, v_ends BIGINT;
  DECLARE v_solo BINARY(16);
  DECLARE v_changed BOOLEAN DEFAULT FALSE;

  START TRANSACTION;
  SELECT last, holds, waits, taken, head, ends, solo INTO v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_solo
    FROM {p}name WHERE name = p_name FOR UPDATE SKIP LOCKED;
  SET p_now = {now};
  IF v_last IS NOT NULL THEN
    IF v_solo IS NOT NULL THEN
      CALL {p}unfold(p_name);
    END IF;
    CALL {p}sweep(p_name, p_now, v_last, v_holds, v_waits, v_taken, v_head, v_ends, v_changed);
    IF v_changed THEN
      UPDATE {p}name SET last = v_last, holds = v_holds, waits = v_waits, taken = v_taken, head = v_head, ends = v_ends
        WHERE name = p_name;
    END IF;
  END IF;
  COMMIT;
END
