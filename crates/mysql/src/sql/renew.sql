-- renew: extends holds by their ttl. It waits for nobody: a hold that somebody else is at in this moment is left alone. One
-- that nobody waits for any more may come after later ones: where a hold lasts longer than this would make it, the clock is read again,
-- so that no end is set back but by the clock itself.
--
-- p_claims are the claims one after the other: 16 bytes of id, 2 of the length of the name, and the name. Gives for each
-- that somebody asked something of: its place, reason, host, pid; then now, and for each a letter: h held, l lost, u
-- unknown
CREATE /*M! OR REPLACE */ PROCEDURE {p}renew(IN p_claims MEDIUMBLOB)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_at INT DEFAULT 1;
  DECLARE v_place, v_there INT DEFAULT 0;
  DECLARE v_id BINARY(16);
  DECLARE v_name VARBINARY(512);
  DECLARE v_now, v_ends, v_lasts BIGINT;
  DECLARE v_asked BOOLEAN;
  DECLARE v_says MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SET v_now = {now};
  WHILE v_at <= LENGTH(p_claims) DO
    SET v_id = SUBSTRING(p_claims, v_at, 16), v_ends = NULL, v_asked = FALSE, v_there = 0;
    SET v_name = SUBSTRING(p_claims, v_at + 18, CONV(HEX(SUBSTRING(p_claims, v_at + 16, 2)), 16, 10));
    SET v_at = v_at + 18 + LENGTH(v_name);
    SELECT ends, ttl + delay, asked_reason IS NOT NULL INTO v_ends, v_lasts, v_asked
      FROM {p}ticket WHERE id = v_id AND waiting = 0 AND closing = 0 FOR UPDATE SKIP LOCKED;
    IF v_ends IS NULL THEN
      SELECT ends, solo_ttl + solo_delay INTO v_ends, v_lasts
        FROM {p}name WHERE name = v_name AND solo = v_id FOR UPDATE SKIP LOCKED;
      IF v_ends > v_now + v_lasts THEN
        SET v_now = {now};
      END IF;
      IF v_ends > v_now THEN
        UPDATE {p}name SET ends = v_now + v_lasts WHERE name = v_name;
        SET v_lasts = NULL; -- it is written
      END IF;
    END IF;
    IF v_ends IS NULL THEN
      -- Statements of their own: a subquery in an IF reads with a lock, and would wait for it. First where it may have
      -- been, then where it may have got to meanwhile.
      SELECT COUNT(*) INTO v_there FROM {p}name WHERE name = v_name AND solo = v_id;
      IF v_there = 0 THEN
        SELECT COUNT(*) INTO v_there FROM {p}ticket WHERE id = v_id AND waiting = 0 AND closing = 0;
      END IF;
    END IF;
    IF v_ends > v_now THEN
      IF v_lasts IS NOT NULL THEN
        IF v_ends > v_now + v_lasts THEN
          SET v_now = {now};
        END IF;
        UPDATE {p}ticket SET ends = v_now + v_lasts WHERE id = v_id;
      END IF;
      IF v_asked THEN
        SELECT v_place, asked_reason, asked_host, asked_pid FROM {p}ticket WHERE id = v_id;
      END IF;
      SET v_says = CONCAT(v_says, 'h');
    ELSEIF v_there > 0 THEN
      SET v_says = CONCAT(v_says, 'u');
    ELSE
      SET v_says = CONCAT(v_says, 'l');
    END IF;
    SET v_place = v_place + 1;
  END WHILE;
  COMMIT;
  SELECT v_now, v_says;
END
