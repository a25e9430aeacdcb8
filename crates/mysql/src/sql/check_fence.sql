-- check_fence: shows a fencing token for a resource, in the transaction that is about to write to it. Refused with an error
-- (45000) if a higher token was shown before: roll back then. The row stays locked to the commit, so that two holders cannot
-- both pass.
CREATE /*M! OR REPLACE */ PROCEDURE {p}check_fence(IN p_resource VARBINARY(512), IN p_token BIGINT)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  DECLARE v_highest BIGINT;
  DECLARE v_words VARCHAR(128) CHARACTER SET ascii;

  INSERT INTO {p}fence (name, token) VALUES (p_resource, p_token) ON DUPLICATE KEY UPDATE token = GREATEST(token, p_token);
  SELECT token INTO v_highest FROM {p}fence WHERE name = p_resource FOR UPDATE;
  IF v_highest > p_token THEN
    SET v_words = CONCAT('the token ', p_token, ' is superseded by ', v_highest);
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = v_words;
  END IF;
  SELECT 'shown', v_highest;
END
