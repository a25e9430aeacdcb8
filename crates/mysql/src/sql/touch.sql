-- touch: looks after waiters. With p_alive the client is heard of, and keeps the places of all its waiters for so long. A
-- name is locked only where time has made room: a hold may have ended, or the first in line has died. Whoever is inside
-- has nothing to wait for, so then only its own end counts. Else nothing is written.
--
-- p_ids are the ids of claims, one after the other. Gives for each: its place, now, and one of
-- waiting first change_in | granted token since left | gone; then what others had to say; then now
CREATE /*M! OR REPLACE */ PROCEDURE {p}touch(IN p_client BIGINT UNSIGNED, IN p_alive BIGINT, IN p_ids MEDIUMBLOB)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_place INT DEFAULT 0;
  DECLARE v_id BINARY(16);
  DECLARE v_name VARBINARY(512);
  DECLARE v_waiting, v_closing TINYINT UNSIGNED;
  DECLARE v_client, v_letter BIGINT UNSIGNED;
  DECLARE v_token, v_since, v_left, v_seq, v_head, v_ends, v_alive, v_now, v_next BIGINT;
  DECLARE v_due, v_settled BOOLEAN;
  DECLARE v_says VARCHAR(8) CHARACTER SET ascii;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF p_alive IS NOT NULL THEN
    SET v_now = {now};
    INSERT INTO {p}client (id, alive) VALUES (p_client, v_now + p_alive)
      ON DUPLICATE KEY UPDATE alive = GREATEST(alive, v_now + p_alive);
  END IF;
  WHILE v_place * 16 < LENGTH(p_ids) DO
    SET v_id = SUBSTRING(p_ids, v_place * 16 + 1, 16), v_settled = FALSE, v_says = NULL, v_now = {now};
    WHILE v_says IS NULL DO
      SET v_waiting = NULL, v_due = FALSE;
      SELECT t.name, t.waiting, t.closing, t.token, t.since, t.ends - t.delay - v_now, t.seq, n.head, n.ends,
             IF(t.waiting, n.holds > 0 AND n.ends <= v_now, t.ends <= v_now)
        INTO v_name, v_waiting, v_closing, v_token, v_since, v_left, v_seq, v_head, v_ends, v_due
        FROM {p}ticket t JOIN {p}name n ON n.name = t.name WHERE t.id = v_id;
      IF v_waiting = 1 AND NOT v_due THEN
        SET v_alive = NULL;
        SELECT ends, client INTO v_alive, v_client FROM {p}ticket WHERE name = v_name AND waiting = 1 AND place = v_head;
        IF v_alive <= v_now THEN
          SELECT alive INTO v_alive FROM {p}client WHERE id = v_client;
        END IF;
        SET v_due = v_alive IS NULL OR v_alive <= v_now;
      END IF;
      IF v_waiting IS NULL OR v_closing = 1 THEN
        SET v_says = 'gone';
      ELSEIF v_due AND NOT v_settled THEN
        CALL {p}settle(v_name, v_now); -- and look again
        SET v_settled = TRUE;
      ELSEIF v_waiting = 1 THEN
        SELECT MIN(place) INTO v_next FROM {p}ticket WHERE name = v_name AND waiting = 0 AND place >= v_ends;
        SET v_says = 'waiting', v_token = v_seq = v_head, v_since = v_next - v_now, v_left = NULL;
      ELSE
        SET v_says = 'granted';
      END IF;
    END WHILE;
    SELECT v_place, v_now, v_says, v_token, v_since, v_left;
    SET v_place = v_place + 1;
  END WHILE;
  -- One letter at a time: a lower number may be committed later, and what was not read must not be deleted.
  letters: LOOP
    SET v_letter = NULL;
    SELECT MIN(number) INTO v_letter FROM {p}mail WHERE client = p_client;
    IF v_letter IS NULL THEN
      LEAVE letters;
    END IF;
    SELECT id, lost, reason, host, pid FROM {p}mail WHERE number = v_letter;
    DELETE FROM {p}mail WHERE number = v_letter;
  END LOOP;
  SELECT {now};
END
