-- leftovers: removes marks whose time is over, clients that are dead, and mail that nobody fetched. At most p_limit of each.
CREATE PROCEDURE {p}leftovers(IN p_limit INT, IN p_mail BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_id BIGINT UNSIGNED;
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE v_left INT DEFAULT p_limit;

  IF EXISTS (SELECT 1 FROM {p}mark WHERE ends <= v_now) THEN
    DELETE FROM {p}mark WHERE ends <= v_now ORDER BY ends LIMIT p_limit;
  END IF;
  IF EXISTS (SELECT 1 FROM {p}mail WHERE sent <= v_now - p_mail) THEN
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
  SELECT {now};
END
