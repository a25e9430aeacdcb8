-- cell_set: writes a cell, or removes it, if its version is still p_expected. Gives now, and its new version if it was
CREATE /*M! OR REPLACE */ PROCEDURE {p}cell_set(IN p_name VARBINARY(512), IN p_expected BIGINT, IN p_value LONGBLOB)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_version, v_floor, v_now, v_next BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SELECT version INTO v_version FROM {p}cell WHERE name = p_name FOR UPDATE;
  SET v_now = {now};
  IF IFNULL(v_version, 0) = p_expected THEN
    SELECT token INTO v_floor FROM {p}floor WHERE id = 1 LOCK IN SHARE MODE;
    SET v_next = GREATEST(p_expected + 1, v_floor + 1, v_now);
    IF p_value IS NULL THEN
      UPDATE {p}floor SET token = GREATEST(token, v_next) WHERE id = 1;
      DELETE FROM {p}cell WHERE name = p_name;
    ELSEIF v_version IS NOT NULL THEN
      UPDATE {p}cell SET version = v_next, value = p_value WHERE name = p_name;
    ELSE
      BEGIN
        DECLARE CONTINUE HANDLER FOR 1062 SET v_next = NULL; -- somebody else was faster
        INSERT INTO {p}cell (name, version, value) VALUES (p_name, v_next, p_value);
      END;
    END IF;
  END IF;
  COMMIT;
  SELECT v_now, v_next;
END
