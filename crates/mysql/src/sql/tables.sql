-- The tables of tenure. All times are microseconds since 1970 by the server's clock in UTC; all texts are bytes, so that no
-- character set and no collation of the server's can make two names one.

-- A name in use, and for a moment after. Whoever changes anything about a name has its row locked.
--
-- A claim that is let in while nobody else is there needs no ticket: what one would say of it is in the name's row itself,
-- so that taking and letting go of a name that nobody else wants is one write of one row each. Whoever comes next makes a
-- ticket of it.
CREATE TABLE IF NOT EXISTS {p}name (
  name    VARBINARY(512)   NOT NULL,
  kind    TINYINT UNSIGNED NOT NULL, -- 0 mutex, 1 fair mutex, 2 rw lock, 3 semaphore, 4 election
  permits INT UNSIGNED     NOT NULL, -- how many a semaphore has
  last    BIGINT           NOT NULL, -- the last token given
  seq     BIGINT           NOT NULL, -- the last number drawn in the line
  holds   INT UNSIGNED     NOT NULL, -- how many tickets are inside, held or closing
  waits   INT UNSIGNED     NOT NULL, -- how many wait
  taken   BIGINT           NOT NULL, -- how many permits, or readers, are inside
  head    BIGINT           NOT NULL, -- no waiter has a lower number
  ends    BIGINT           NOT NULL, -- nobody inside ends earlier
  used    BIGINT           NOT NULL, -- when it was last asked for or let go of
  marked  BIGINT           NOT NULL DEFAULT 9223372036854775807, -- until then a claim for it may have been ended before it was asked for
  solo          BINARY(16), -- who is inside without a ticket; `last` is its token and `used` when it was let in
  solo_mode     TINYINT UNSIGNED,
  solo_take     INT UNSIGNED,
  solo_client   BIGINT UNSIGNED,
  solo_ttl      BIGINT,
  solo_handover BIGINT,
  solo_delay    BIGINT,
  solo_note     VARBINARY(1024),
  solo_host     VARBINARY(1024),
  solo_pid      INT UNSIGNED,
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A claim that holds a name, keeps it closed, or waits for it. Renewals lock a row of this without the name's.
CREATE TABLE IF NOT EXISTS {p}ticket (
  id           BINARY(16)       NOT NULL, -- the claim's secret
  name         VARBINARY(512)   NOT NULL,
  waiting      TINYINT UNSIGNED NOT NULL, -- 1: in line
  closing      TINYINT UNSIGNED NOT NULL, -- 1: nobody's any more, but keeps the name closed
  mode         TINYINT UNSIGNED NOT NULL, -- 0 exclusive, 1 shared, 2 permits
  take         INT UNSIGNED     NOT NULL, -- how many permits; 0 exclusive, 1 shared
  permits      INT UNSIGNED     NOT NULL,
  client       BIGINT UNSIGNED  NOT NULL, -- whose
  ttl          BIGINT           NOT NULL, -- how long a grant lasts
  handover     BIGINT           NOT NULL, -- how long one lasts that is made while it waits
  delay        BIGINT           NOT NULL, -- how long the name stays closed if its holder is lost
  note         VARBINARY(1024)  NOT NULL,
  host         VARBINARY(1024)  NOT NULL,
  pid          INT UNSIGNED     NOT NULL,
  seq          BIGINT           NOT NULL, -- its number in the line
  since        BIGINT           NOT NULL, -- when it came, or was let in
  token        BIGINT           NOT NULL,
  ends         BIGINT           NOT NULL, -- inside: when time ends it; in line: until when it counts as alive by itself
  place        BIGINT GENERATED ALWAYS AS (IF(waiting, seq, ends)) STORED,
  asked_reason VARBINARY(1024), -- what somebody asked of its holder
  asked_host   VARBINARY(1024),
  asked_pid    INT UNSIGNED,
  PRIMARY KEY (id),
  KEY line (name, waiting, place)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A client with waiters: they keep their places until then.
CREATE TABLE IF NOT EXISTS {p}client (
  id    BIGINT UNSIGNED NOT NULL,
  alive BIGINT          NOT NULL,
  PRIMARY KEY (id)
) ENGINE = InnoDB;

-- What others have to say to a client: that a claim of its was asked for, or ended by force.
CREATE TABLE IF NOT EXISTS {p}mail (
  number BIGINT UNSIGNED  NOT NULL AUTO_INCREMENT,
  client BIGINT UNSIGNED  NOT NULL,
  id     BINARY(16)       NOT NULL,
  lost   TINYINT UNSIGNED NOT NULL,
  reason VARBINARY(1024)  NOT NULL,
  host   VARBINARY(1024)  NOT NULL,
  pid    INT UNSIGNED     NOT NULL,
  sent   BIGINT           NOT NULL,
  PRIMARY KEY (number),
  KEY inbox (client, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A claim that was ended while a request for it may still arrive.
CREATE TABLE IF NOT EXISTS {p}mark (
  id   BINARY(16) NOT NULL,
  ends BIGINT     NOT NULL,
  PRIMARY KEY (id),
  KEY ends (ends)
) ENGINE = InnoDB;

-- A cell: the optimistic lock.
CREATE TABLE IF NOT EXISTS {p}cell (
  name    VARBINARY(512) NOT NULL,
  version BIGINT         NOT NULL,
  value   LONGBLOB       NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The highest token or version of all that was removed: numbers go on above it.
CREATE TABLE IF NOT EXISTS {p}floor (
  id    TINYINT UNSIGNED NOT NULL,
  token BIGINT           NOT NULL,
  PRIMARY KEY (id)
) ENGINE = InnoDB;

-- Names that somebody locks in transactions of its own. Whoever has a row locked has the name, until the transaction ends:
-- that is how everybody else knows. A row goes some time after that of its name.
CREATE TABLE IF NOT EXISTS {p}tx (
  name VARBINARY(512) NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The highest token that a fenced write came with, by what it protects.
CREATE TABLE IF NOT EXISTS {p}fence (
  name  VARBINARY(512) NOT NULL,
  token BIGINT         NOT NULL,
  PRIMARY KEY (name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Which version of all this it is.
CREATE TABLE IF NOT EXISTS {p}setup (
  id      TINYINT UNSIGNED NOT NULL,
  version INT UNSIGNED     NOT NULL,
  PRIMARY KEY (id)
) ENGINE = InnoDB;
