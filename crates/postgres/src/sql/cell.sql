-- cell_set: writes a cell, or removes it if there is no value, if its version is still the expected one; 0 is that of a cell
-- that is not there. Gives the time, and the new version if it was done. Versions never start over.
CREATE OR REPLACE FUNCTION {cell_set}(of_name text, expected bigint, new_value bytea) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_us bigint;
  next bigint;
BEGIN
  IF expected = 0 THEN
    INSERT INTO {cell} (name, version, value) VALUES (of_name, 0, '') ON CONFLICT DO NOTHING;
  ELSE
    PERFORM FROM {cell} WHERE name = of_name AND version = expected FOR UPDATE;
  END IF;
  now_us := {clock}();
  IF NOT FOUND THEN
    RETURN ARRAY[now_us];
  END IF;
  next := greatest(expected + 1, {lowest}() + 1, now_us);
  IF new_value IS NOT NULL THEN
    UPDATE {cell} SET version = next, value = new_value WHERE name = of_name;
  ELSE
    DELETE FROM {cell} WHERE name = of_name;
    UPDATE {floor} SET value = next WHERE one AND value < next;
  END IF;
  RETURN ARRAY[now_us, next];
END $$;
