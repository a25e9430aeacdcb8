-- unfold: makes a ticket of the claim that is alone inside. The caller has the name's row locked.
CREATE /*M! OR REPLACE */ PROCEDURE {p}unfold(IN p_name VARBINARY(512))
  MODIFIES SQL DATA
  SQL SECURITY INVOKER
BEGIN
  INSERT INTO {p}ticket (id, name, waiting, closing, mode, take, permits, client, ttl, handover, delay, note, host, pid, seq,
                         since, token, ends)
    SELECT solo, name, 0, 0, solo_mode, solo_take, permits, solo_client, solo_ttl, solo_handover, solo_delay, solo_note,
           solo_host, solo_pid, seq, used, last, ends
      FROM {p}name WHERE name = p_name AND solo IS NOT NULL;
  UPDATE {p}name SET solo = NULL WHERE name = p_name;
END
