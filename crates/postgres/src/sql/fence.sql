-- check_fence: shows a fencing token for a resource, in the transaction that is about to write to it. Refused with an error
-- (TN001), which aborts that transaction, if a higher token was shown before. The row stays locked to the commit, so that two
-- holders cannot both pass.
CREATE OR REPLACE FUNCTION {check_fence}(resource text, shown bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  highest bigint;
BEGIN
  INSERT INTO {fence} AS f (name, token) VALUES (resource, shown)
  ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE excluded.token >= f.token;
  IF NOT FOUND THEN
    SELECT token INTO highest FROM {fence} WHERE name = resource;
    RAISE EXCEPTION 'the token % is superseded by %', shown, highest USING ERRCODE = 'TN001';
  END IF;
  RETURN shown;
END $$;
