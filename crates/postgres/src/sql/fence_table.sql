-- The highest token that a fenced write has shown, for each name.
CREATE TABLE IF NOT EXISTS {fence} (
  name text COLLATE "C" PRIMARY KEY,
  token bigint NOT NULL
) WITH (fillfactor = 50);
