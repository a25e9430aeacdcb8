//! The servers there are: each has contenders and bases of its own, and a report of its own.

/// A kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Store {
    Redis,
    Postgres,
    MariaDb,
    Etcd,
    ZooKeeper,
}

impl Store {
    pub(crate) const ALL: &[Store] = &[Store::Redis, Store::Postgres, Store::MariaDb, Store::Etcd, Store::ZooKeeper];

    pub(crate) fn key(self) -> &'static str {
        match self {
            Store::Redis => "redis",
            Store::Postgres => "postgres",
            Store::MariaDb => "mariadb",
            Store::Etcd => "etcd",
            Store::ZooKeeper => "zookeeper",
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let found = Store::ALL.iter().find(|store| store.key() == text).copied();
        found.ok_or_else(|| format!("there is no server {text}; there are redis, postgres, mariadb, etcd and zookeeper"))
    }
}
