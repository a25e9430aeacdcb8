-- leftovers: removes marks whose time is over, clients that are dead, mail that nobody fetched, and what transactions left of names
-- that are gone. At most p_limit of each.
CREATE /*M! OR REPLACE */ PROCEDURE {p}leftovers(IN p_limit INT, IN p_mail BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_id BIGINT UNSIGNED;
  DECLARE v_name, v_free VARBINARY(512) DEFAULT '';
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE v_end BIGINT;
  DECLARE v_left INT DEFAULT p_limit;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- Looked for by plain reads, which lock nothing: a DELETE would lock what it looks at, though it is nothing.
  SELECT MIN(ends) INTO v_end FROM {p}mark;
  IF v_end <= v_now THEN
    DELETE FROM {p}mark WHERE ends <= v_now ORDER BY ends LIMIT p_limit;
  END IF;
  SET v_end = NULL;
  SELECT sent INTO v_end FROM {p}mail ORDER BY number LIMIT 1;
  IF v_end <= v_now - p_mail THEN
    DELETE FROM {p}mail WHERE sent <= v_now - p_mail ORDER BY number LIMIT p_limit;
  END IF;
  clients: WHILE v_left > 0 DO
    SET v_id = NULL;
    SELECT id INTO v_id FROM {p}client WHERE alive <= v_now LIMIT 1;
    IF v_id IS NULL THEN
      LEAVE clients;
    END IF;
    DELETE FROM {p}client WHERE id = v_id AND alive <= v_now;
    SET v_left = v_left - 1;
  END WHILE;
  SET v_left = p_limit;
  names: WHILE v_left > 0 DO
    SELECT MIN(t.name) INTO v_name FROM {p}tx t LEFT JOIN {p}name n ON n.name = t.name WHERE t.name > v_name AND n.name IS NULL;
    IF v_name IS NULL THEN
      LEAVE names;
    END IF;
    START TRANSACTION;
    SET v_free = NULL;
    SELECT name INTO v_free FROM {p}tx WHERE name = v_name FOR UPDATE SKIP LOCKED; -- a transaction has it: then it stays
    DELETE FROM {p}tx WHERE name = v_free;
    COMMIT;
    SET v_left = v_left - 1;
  END WHILE;
  SELECT {now};
END
