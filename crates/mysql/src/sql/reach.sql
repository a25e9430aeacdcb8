-- reach: gets hold of a name's row that was not to be had at once: it is not there, another verb has it for the moment it
-- takes, or somebody's own transaction has it for as long as that likes. Only the last is not waited for: p_locked.
-- With p_create the row is there afterwards, and ours; a new one has -1 as its last token.
CREATE /*M! OR REPLACE */ PROCEDURE {p}reach(IN p_name VARBINARY(512), IN p_create BOOLEAN, OUT p_locked BOOLEAN)
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  SET p_locked = FALSE;
  BEGIN
    DECLARE CONTINUE HANDLER FOR 1205, 3572 SET p_locked = TRUE; -- MariaDB's and MySQL's word for "locked"
    -- As a text, since MariaDB takes no NOWAIT in procedures otherwise, and the two have different words for it.
    SET @{p}name = p_name, @{p}text = CONCAT('SELECT COUNT(*) INTO @{p}found FROM {p}tx WHERE name = ? ',
      IF(VERSION() LIKE '%MariaDB%', 'LOCK IN SHARE MODE NOWAIT', 'FOR SHARE NOWAIT'));
    PREPARE {p}probe FROM @{p}text;
    EXECUTE {p}probe USING @{p}name;
    DEALLOCATE PREPARE {p}probe;
  END;
  IF p_create AND NOT p_locked THEN
    INSERT INTO {p}name (name, kind, permits, last, seq, holds, waits, taken, head, ends, used)
      VALUES (p_name, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0)
      ON DUPLICATE KEY UPDATE name = p_name;
  END IF;
END
