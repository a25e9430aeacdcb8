//! What is in a server, and under which keys: the layout that every script and every reader shares.
//!
//! | key or channel | type | what it is |
//! |---|---|---|
//! | `P:{B}:lock:NAME` | string or hash | the record of one name: a string while one claim holds it and nobody else came, else a hash of its tickets; `scripts/line.lua` says how |
//! | `P:{B}:line:NAME` | sorted set | who waits: claim id and the waiter's secret by number in line |
//! | `P:{B}:held:NAME` | sorted set | who holds it with others (readers, permits): claim id by expiry |
//! | `P:{B}:names` | sorted set | the names in use, all with score 0: what `ls` pages through |
//! | `P:{B}:token` | string | the highest token or version ever given in this bucket |
//! | `P:{B}:ended:ID` | string | a claim that was ended while its ask may still be on its way: never to be granted |
//! | `P:{B}:past:NAME` | string | the token of the name's last hold that was ended, for a few seconds: what is said of a sequencer then |
//! | `P:{B}:cell:NAME` | hash | a cell: its value and version |
//! | `P:{B}:fence:NAME` | string | the highest token that was shown to the fence, as 19 digits; stays for ever |
//! | `P:{B}:probe` | string | what `tenure bench --fence` writes |
//! | `P:{B}:inbox:CLIENT` | channel | what a client is told: granted, asked, lost |
//!
//! `P` is the prefix (`tenure` unless the URL says otherwise) and `B` the bucket. All keys of a bucket have one hash tag and
//! so one slot, wherever that lives: a script touches one bucket only. A single server has one bucket, so that one inbox and
//! one index are all a client needs; a cluster has [`CLUSTER_BUCKETS`], each name in the one that its hash says. `NAME` stands
//! last and as it is: Redis's keys are bytes, so no two names meet, whatever is in them.
//!
//! Every key but a cell's and a fence's expires by itself. A name that nobody holds and nobody waits for leaves nothing after a few
//! seconds but the bucket's token, which goes a day after the last grant and after its own time, if the clock was ahead when it
//! was given: tokens begin with the server's clock, so a forgotten one does no harm once that is past it.

use tenure_core::{ClaimId, LockName};

/// How many buckets a cluster has: enough to spread over any number of masters in use, few enough to list.
pub(crate) const CLUSTER_BUCKETS: u16 = 256;

/// Which part of the key space a name lives in.
pub(crate) type Bucket = u16;

/// Where everything is.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    /// What every key of a bucket begins with.
    heads: Vec<String>,
}

impl Layout {
    /// One bucket: a server, or a master with replicas.
    pub(crate) fn single(prefix: &str) -> Self {
        Self::with_buckets(prefix, 1)
    }

    /// Many: a cluster.
    pub(crate) fn cluster(prefix: &str) -> Self {
        Self::with_buckets(prefix, CLUSTER_BUCKETS)
    }

    fn with_buckets(prefix: &str, buckets: u16) -> Self {
        Layout { heads: (0..buckets).map(|bucket| format!("{prefix}:{{{bucket}}}:")).collect() }
    }

    /// All buckets.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = Bucket> + use<> {
        0..self.heads.len() as Bucket
    }

    /// The bucket of a name. FNV-1a: fixed for ever, since all programs must agree on it, whatever their version.
    pub(crate) fn bucket(&self, name: &LockName) -> Bucket {
        if self.heads.len() == 1 {
            return 0;
        }
        let hash = name
            .as_str()
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        (hash % self.heads.len() as u64) as Bucket
    }

    /// The hash tag of a bucket, which decides its slot in a cluster.
    pub(crate) fn tag(&self, bucket: Bucket) -> String {
        bucket.to_string()
    }

    fn key(&self, bucket: Bucket, what: &str, of: &str) -> Vec<u8> {
        [&self.heads[usize::from(bucket)], what, of].concat().into_bytes()
    }

    /// The record of a name.
    pub(crate) fn lock(&self, name: &LockName) -> Vec<u8> {
        self.key(self.bucket(name), "lock:", name.as_str())
    }

    /// The line of a name.
    pub(crate) fn line(&self, name: &LockName) -> Vec<u8> {
        self.key(self.bucket(name), "line:", name.as_str())
    }

    /// The shared holders of a name.
    pub(crate) fn held(&self, name: &LockName) -> Vec<u8> {
        self.key(self.bucket(name), "held:", name.as_str())
    }

    /// What is remembered of a name's last hold.
    pub(crate) fn past(&self, name: &LockName) -> Vec<u8> {
        self.key(self.bucket(name), "past:", name.as_str())
    }

    /// The cell of a name.
    pub(crate) fn cell(&self, name: &LockName) -> Vec<u8> {
        self.key(self.bucket(name), "cell:", name.as_str())
    }

    /// The fence of a name.
    pub(crate) fn fence(&self, name: &LockName) -> Vec<u8> {
        self.key(self.bucket(name), "fence:", name.as_str())
    }

    /// What is written to see what a write costs.
    pub(crate) fn probe(&self, bucket: Bucket) -> Vec<u8> {
        self.key(bucket, "probe", "")
    }

    /// The names in use.
    pub(crate) fn names(&self, bucket: Bucket) -> Vec<u8> {
        self.key(bucket, "names", "")
    }

    /// The last token.
    pub(crate) fn token(&self, bucket: Bucket) -> Vec<u8> {
        self.key(bucket, "token", "")
    }

    /// The mark that a claim was ended.
    pub(crate) fn ended(&self, bucket: Bucket, id: ClaimId) -> Vec<u8> {
        self.key(bucket, "ended:", &hex(id.as_bytes()))
    }

    /// The channel on which a client hears about its claims in this bucket.
    pub(crate) fn inbox(&self, bucket: Bucket, client: &str) -> Vec<u8> {
        self.key(bucket, "inbox:", client)
    }
}

/// Bytes as two digits each.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    digits.map(char::from).collect()
}
